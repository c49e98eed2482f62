// Note [Adding a collective to the backend]
// A method of SimBackend does three things: it checks this rank's tensors (before any rank waits, so that every
// rank throws alike), describes them as a Call, which the engine compares across ranks, and passes to `join` the
// function that computes the result for all ranks. That function runs only on the last rank to arrive, so it must
// take the tensors of all ranks from its argument, not from captured variables. The guide's page on the
// architecture lists the other steps.
#include "sim/backend/sim_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "reference/core/call_site.hpp"
#include "reference/core/errors.hpp"
#include "sim/backend/backend_rules.hpp"

namespace accel::sim {
SimBackend::SimBackend(Member member, std::shared_ptr<Group> group, int group_rank)
    : c10d::Backend(group_rank, static_cast<int>(group->ranks.size())),
      member_(std::move(member)),
      world_(member_.world),
      group_(std::move(group)) {
  setGroupUid(group_->name);
}

ParallelFor SimBackend::parallel_for() const {
  return [world = world_](std::int64_t count, const std::function<void(std::int64_t)>& body) {
    world->executor().parallel_for(count, body);
  };
}

Call SimBackend::described(Collective op, const Tensors& tensors, std::string_view reduce_op, int root) const {
  check_accepted(member_.library, op, tensors);
  if (!reduce_op.empty()) check_accepted_reduction(member_.library, op, reduce_op, tensors.front().scalar_type());
  return call_of(op, tensors, reduce_op, root);
}

void SimBackend::check_output(Collective op, const at::Tensor& output, const at::Tensor& like) const {
  check_accepted_output(member_.library, op, output);
  check_same(op, output, like);
}

// The part that all collectives share. `sequence_` is this rank's own count; it equals the engine's number
// because every collective of the group passes through here. The guard watches the buffers from here until `wait()`.
c10::intrusive_ptr<SimWork> SimBackend::join(c10d::OpType type, Call call, Buffers buffers,
                                             std::vector<Tensors> results, TensorCompute compute) {
  const auto slot = next_slot();
  ++sequence_;
  call.where = CallSite::current();
  const auto joined = std::make_shared<JoinedBuffers>(std::move(buffers), call);
  const auto& traits = traits_of(call.op);
  // In-place collectives write the tensors that they read, except on the root of a broadcast, which may go on reading.
  const bool overwrites_inputs = traits.is_in_place && !(traits.root_only_reads && call.root == getRank());
  auto memory = used_memory(joined->inputs, /*are_written=*/overwrites_inputs);
  for (auto& used : used_memory(joined->outputs, /*are_written=*/true)) memory.push_back(std::move(used));
  auto meeting =
      world_->arrive(*group_, getRank(), call, joined,
                     [slot, compute = std::move(compute)](std::span<const Participant> participants) {
                       const at::DisableRecordFunctionGuard unwatched;  // the computation may touch all watched buffers
                       compute(unchanged_buffers(slot, participants));
                     });
  member_.guard->issue(meeting, call, std::move(memory));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, type,
                                      std::move(results));
}

SimBackend::WorkPtr SimBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_one(Collective::kBroadcast, tensors);
  const int root = static_cast<int>(options.rootRank);
  check_root(Collective::kBroadcast, root, getSize());
  return join(c10d::OpType::BROADCAST, described(Collective::kBroadcast, tensors, {}, root), {.inputs = tensors},
              {tensors}, [root](AllBuffers ranks) { sim::broadcast(ranks, root); });
}

SimBackend::WorkPtr SimBackend::reduce_flat(Collective op, Tensors& tensors, const c10d::ReduceOp& reduce_op,
                                            c10d::OpType type) {
  check_argument(!tensors.empty(), "{}: got no tensors; expected at least one", name_of(op));
  const auto reduction = reduction_of(reduce_op);
  for (const auto& tensor : tensors) {
    check_argument(tensor.scalar_type() == tensors.front().scalar_type(),
                   "{}: the tensors have several dtypes; expected one", name_of(op));
  }
  return join(
      type, described(op, tensors, reduction.name), {.inputs = tensors}, {tensors},
      warn_on_lost_nan(
          next_slot(), op, reduction, [](AllBuffers ranks, std::size_t item) { return ranks[0]->inputs[item]; },
          [kind = reduction.kind, parallel = parallel_for()](AllBuffers ranks) { all_reduce(ranks, kind, parallel); }));
}

SimBackend::WorkPtr SimBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(Collective::kAllReduce, tensors);
  // Like ProcessGroupGloo::allreduce, which dispatches on the layout.
  if (tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  return reduce_flat(Collective::kAllReduce, tensors, options.reduceOp, c10d::OpType::ALLREDUCE);
}

SimBackend::WorkPtr SimBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(Collective::kAllReduce, tensors);
  check_argument(options.reduceOp == c10d::ReduceOp::SUM,
                 "all_reduce: sparse tensors support only the sum; use op sum or a dense tensor");
  const auto coalesced = [](const at::Tensor& tensor) {
    const at::DisableRecordFunctionGuard unwatched;
    return tensor.detach().coalesce();
  };
  const Tensors sent{coalesced(tensors.front())};
  return join(c10d::OpType::_ALLREDUCE_SPARSE, described(Collective::kAllReduce, sent, "sum"),
              {.inputs = sent, .outputs = tensors}, {tensors}, [](AllBuffers ranks) { all_reduce_sparse(ranks); });
}

SimBackend::WorkPtr SimBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return reduce_flat(Collective::kAllReduceCoalesced, tensors, options.reduceOp, c10d::OpType::ALLREDUCE_COALESCED);
}

SimBackend::WorkPtr SimBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_one(Collective::kReduce, tensors);
  const auto reduction = reduction_of(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  check_root(Collective::kReduce, root, getSize());
  auto work = join(c10d::OpType::REDUCE, described(Collective::kReduce, tensors, reduction.name, root),
                   {.inputs = tensors}, {tensors},
                   warn_on_lost_nan(
                       next_slot(), Collective::kReduce, reduction,
                       [root](AllBuffers ranks, std::size_t item) { return ranks[root]->inputs[item]; },
                       [kind = reduction.kind, root, parallel = parallel_for()](AllBuffers ranks) {
                         sim::reduce(ranks, kind, root, parallel);
                       }));
  // Gloo leaves partial sums in the tensors of the other ranks. The program may ignore them but must not use them.
  if (getRank() != root) work->mark_partial();
  return work;
}

SimBackend::WorkPtr SimBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) {
  check_one(Collective::kAllGather, inputs);
  check_argument(outputs.size() == 1, "all_gather: got {} output lists; expected one", outputs.size());
  check_count(Collective::kAllGather, "outputs", outputs[0].size(), getSize());
  for (const auto& output : outputs[0]) check_output(Collective::kAllGather, output, inputs[0]);
  return join(c10d::OpType::ALLGATHER, described(Collective::kAllGather, inputs),
              {.inputs = inputs, .outputs = outputs[0]}, outputs,
              [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  check_parts(Collective::kAllGatherIntoTensor, output, input, getSize());
  return join(c10d::OpType::_ALLGATHER_BASE, described(Collective::kAllGatherIntoTensor, {input}),
              {.inputs = {input}, .outputs = {output}}, {{output}},
              [parallel = parallel_for()](AllBuffers ranks) { all_gather_into_tensor(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions&) {
  check_count(Collective::kAllGatherCoalesced, "output lists", outputs.size(), getSize());
  Buffers buffers{.inputs = inputs};
  for (const auto& list : outputs) {
    check_count(Collective::kAllGatherCoalesced, "outputs of a rank", list.size(), inputs.size());
    for (std::size_t item = 0; item < list.size(); ++item)
      check_output(Collective::kAllGatherCoalesced, list[item], inputs[item]);
    buffers.outputs.insert(buffers.outputs.end(), list.begin(), list.end());
  }
  return join(c10d::OpType::ALLGATHER_COALESCED, described(Collective::kAllGatherCoalesced, inputs), std::move(buffers),
              outputs, [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

// One flat tensor per input: its parts are views of the output, so the list form writes straight into them.
SimBackend::WorkPtr SimBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions&) {
  check_argument(outputs.size() == inputs.size(),
                 "all_gather_into_tensor_coalesced: got {} outputs for {} inputs; expected as many outputs as inputs",
                 outputs.size(), inputs.size());
  Buffers buffers{.inputs = inputs};
  buffers.outputs.resize(inputs.size() * getSize());
  for (std::size_t item = 0; item < inputs.size(); ++item) {
    const auto parts = parts_of(Collective::kAllGatherIntoTensorCoalesced, outputs[item], inputs[item], getSize());
    for (int rank = 0; rank < getSize(); ++rank) buffers.outputs[rank * inputs.size() + item] = parts[rank];
  }
  return join(c10d::OpType::COALESCED, described(Collective::kAllGatherIntoTensorCoalesced, inputs), std::move(buffers),
              {outputs}, [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  check_one(Collective::kGather, inputs);
  const int root = static_cast<int>(options.rootRank);
  check_root(Collective::kGather, root, getSize());
  Buffers buffers{.inputs = inputs};
  if (getRank() == root) {
    check_argument(outputs.size() == 1, "gather: got {} output lists on the root; expected one", outputs.size());
    check_count(Collective::kGather, "outputs", outputs[0].size(), getSize());
    for (const auto& output : outputs[0]) check_output(Collective::kGather, output, inputs[0]);
    buffers.outputs = outputs[0];
  } else {
    check_argument(outputs.empty(), "gather: got outputs on rank {}; expected them only on the root, rank {}",
                   getRank(), root);
  }
  return join(c10d::OpType::GATHER, described(Collective::kGather, inputs, {}, root), std::move(buffers), outputs,
              [root](AllBuffers ranks) { sim::gather(ranks, root); });
}

SimBackend::WorkPtr SimBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  check_one(Collective::kScatter, outputs);
  const int root = static_cast<int>(options.rootRank);
  check_root(Collective::kScatter, root, getSize());
  Buffers buffers{.outputs = outputs};
  if (getRank() == root) {
    check_argument(inputs.size() == 1, "scatter: got {} input lists on the root; expected one", inputs.size());
    check_count(Collective::kScatter, "inputs", inputs[0].size(), getSize());
    for (const auto& input : inputs[0]) check_output(Collective::kScatter, input, outputs[0]);
    buffers.inputs = inputs[0];
  } else {
    check_argument(inputs.empty(), "scatter: got inputs on rank {}; expected them only on the root, rank {}", getRank(),
                   root);
  }
  return join(c10d::OpType::SCATTER, described(Collective::kScatter, outputs, {}, root), std::move(buffers), {outputs},
              [root](AllBuffers ranks) { sim::scatter(ranks, root); });
}

SimBackend::WorkPtr SimBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  check_one(Collective::kReduceScatter, outputs);
  check_argument(inputs.size() == 1, "reduce_scatter: got {} input lists; expected one", inputs.size());
  check_count(Collective::kReduceScatter, "inputs", inputs[0].size(), getSize());
  const auto reduction = reduction_of(options.reduceOp);
  check_output(Collective::kReduceScatter, outputs[0], inputs[0][getRank()]);
  return join(c10d::OpType::REDUCE_SCATTER, described(Collective::kReduceScatter, inputs[0], reduction.name),
              {.inputs = inputs[0], .outputs = outputs}, {outputs},
              warn_on_lost_nan(
                  next_slot(), Collective::kReduceScatter, reduction,
                  [](AllBuffers ranks, std::size_t part) { return ranks[part]->outputs[0]; },
                  [kind = reduction.kind, parallel = parallel_for()](AllBuffers ranks) {
                    sim::reduce_scatter(ranks, kind, parallel);
                  }));
}

SimBackend::WorkPtr SimBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SimBackend::WorkPtr SimBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::ReduceScatterOptions& options) {
  check_argument(outputs.size() == inputs.size() && !inputs.empty(),
                 "reduce_scatter_tensor: got {} outputs for {} inputs; expected one output per input, at least one",
                 outputs.size(), inputs.size());
  for (std::size_t item = 0; item < inputs.size(); ++item)
    check_parts(Collective::kReduceScatterTensor, inputs[item], outputs[item], getSize());
  const auto reduction = reduction_of(options.reduceOp);
  // The reduced tensor is spread over the ranks' outputs; put together again, it can be searched for a lost NaN.
  const auto whole = [](AllBuffers ranks, std::size_t item) {
    Tensors parts;
    for (const auto* rank : ranks) parts.push_back(rank->outputs[item].flatten());
    return at::cat(parts).view(ranks[0]->inputs[item].sizes());
  };
  return join(c10d::OpType::_REDUCE_SCATTER_BASE, described(Collective::kReduceScatterTensor, inputs, reduction.name),
              {.inputs = inputs, .outputs = outputs}, {outputs},
              warn_on_lost_nan(next_slot(), Collective::kReduceScatterTensor, reduction, whole,
                               [kind = reduction.kind, parallel = parallel_for()](AllBuffers ranks) {
                                 sim::reduce_scatter_tensor(ranks, kind, parallel);
                               }));
}

SimBackend::WorkPtr SimBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions&) {
  const auto check_side = [&](const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                              std::string_view side) {
    check_argument(tensor.dim() > 0, "all_to_all_single: the {} has no dimension 0 to split", side);
    if (splits.empty()) {
      check_argument(tensor.size(0) % getSize() == 0,
                     "all_to_all_single: {} rows of {} are not divisible by {} ranks; pass split sizes", tensor.size(0),
                     side, getSize());
      return;
    }
    std::int64_t sum = 0;
    for (const auto split : splits) sum += split;
    check_argument(static_cast<int>(splits.size()) == getSize() && sum == tensor.size(0),
                   "all_to_all_single: got {} splits of {} with sum {}; expected {} with sum {}", splits.size(), side,
                   sum, getSize(), tensor.size(0));
  };
  check_accepted(member_.library, Collective::kAllToAllSingle, {input});
  check_accepted_output(member_.library, Collective::kAllToAllSingle, output);
  check_side(input, input_splits, "input");
  check_side(output, output_splits, "output");
  check_argument(input.scalar_type() == output.scalar_type(),
                 "all_to_all_single: got an input of {} and an output of {}; expected one dtype",
                 dtype_name(input.scalar_type()), dtype_name(output.scalar_type()));
  // Ranks may send different numbers of rows, so the Call holds only the dtype; the splits are compared once
  // all ranks have arrived and both sides of each pair are known.
  Call call{.op = Collective::kAllToAllSingle,
            .dtype = dtype_name(input.scalar_type()),
            .bytes = static_cast<std::int64_t>(input.nbytes()),
            .element_bytes = static_cast<int>(input.element_size())};
  return join(c10d::OpType::ALLTOALL_BASE, std::move(call),
              {.inputs = {input}, .outputs = {output}, .input_splits = input_splits, .output_splits = output_splits},
              {{output}}, [slot = next_slot()](AllBuffers ranks) {
                check_splits(slot, all_to_all_single_mismatches(ranks), ranks);
                sim::all_to_all_single(ranks);  // not the base class's member, in later LibTorch
              });
}

SimBackend::WorkPtr SimBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  check_accepted(member_.library, Collective::kAllToAll, inputs);
  check_count(Collective::kAllToAll, "inputs", inputs.size(), getSize());
  check_count(Collective::kAllToAll, "outputs", outputs.size(), getSize());
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const auto& tensor : *tensors)
      check_argument(tensor.scalar_type() == inputs[0].scalar_type(),
                     "all_to_all: got tensors of {} and {}; expected one dtype", dtype_name(inputs[0].scalar_type()),
                     dtype_name(tensor.scalar_type()));
  }
  Call call{.op = Collective::kAllToAll,
            .dtype = dtype_name(inputs[0].scalar_type()),
            .element_bytes = static_cast<int>(inputs[0].element_size())};
  for (const auto& input : inputs) call.bytes += static_cast<std::int64_t>(input.nbytes());
  return join(c10d::OpType::ALLTOALL, std::move(call), {.inputs = inputs, .outputs = outputs}, {outputs},
              [slot = next_slot()](AllBuffers ranks) {
                check_splits(slot, all_to_all_mismatches(ranks), ranks);
                sim::all_to_all(ranks);
              });
}

SimBackend::WorkPtr SimBackend::send(Tensors& tensors, int destination, int tag) {
  check_one(Collective::kSend, tensors);
  check_argument(destination >= 0 && destination < getSize(),
                 "send: rank {} is not in the group; expected 0 <= rank < {}", destination, getSize());
  // A copy, so that the send completes at once, whether or not its receive has been posted. The guard still
  // watches the original until `wait()`: real Gloo reads it until then. The operator clock does not charge the copy.
  const auto copy_of = [](const at::Tensor& tensor) {
    const at::DisableRecordFunctionGuard unwatched;
    return tensor.detach().clone();
  };
  auto copy = std::make_shared<Buffers>(Buffers{.inputs = {copy_of(tensors[0])}});
  const auto call = described(Collective::kSend, tensors);
  auto meeting = world_->send(*group_, getRank(), destination, tag, call, std::move(copy));
  member_.guard->issue(meeting, call, used_memory(tensors, /*are_written=*/false));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, c10d::OpType::SEND,
                                      std::vector<Tensors>{});
}

SimBackend::WorkPtr SimBackend::receive(Tensors& tensors, int source, int tag) {
  check_one(Collective::kRecv, tensors);
  auto buffers = std::make_shared<Buffers>(Buffers{.outputs = tensors});
  const auto call = described(Collective::kRecv, tensors);
  const auto deliver = [this, call](const Participant& sent, const Participant& received, std::uint64_t sequence) {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
    const auto& from = static_cast<const Buffers*>(sent.get())->inputs[0];
    auto& to = static_cast<Buffers*>(received.get())->outputs[0];
    // Checked here because Gloo transfers bytes and does not compare dtypes.
    if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel()) {
      const auto what = fmt::format(
          "{} elements of {} were sent, but the tensor of rank {} has {} of {}; expected equal sizes and dtypes",
          from.numel(), c10::toString(from.scalar_type()), member_.rank, to.numel(), c10::toString(to.scalar_type()));
      fail_call({*world_, *group_, sequence}, call, {member_.rank}, what);
    }
    in_memory_order(to).copy_(in_memory_order(from));
  };
  auto meeting = world_->receive(*group_, source, getRank(), tag, call, std::move(buffers), deliver);
  member_.guard->issue(meeting, call, used_memory(tensors, /*are_written=*/true));
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank,
                                      source < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                                      std::vector<Tensors>{tensors});
}

SimBackend::WorkPtr SimBackend::recv(Tensors& tensors, int source, int tag) {
  check_argument(source >= 0 && source < getSize(), "recv: rank {} is not in the group; expected 0 <= rank < {}",
                 source, getSize());
  return receive(tensors, source, tag);
}

SimBackend::WorkPtr SimBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, /*source=*/-1, tag);
}

// A barrier has no tensors; only the rendezvous matters.
SimBackend::WorkPtr SimBackend::barrier(const c10d::BarrierOptions&) {
  return join(c10d::OpType::BARRIER, {.op = Collective::kBarrier}, {}, {}, [](AllBuffers) {});
}

void SimBackend::monitoredBarrier(const c10d::BarrierOptions&, bool /*wait_all_ranks*/) {
  join(c10d::OpType::BARRIER, {.op = Collective::kMonitoredBarrier}, {}, {}, [](AllBuffers) {})->wait(kNoTimeout);
}

}  // namespace accel::sim
