// Note [Adding a collective]
// A method of CollectiveBackend checks this rank's tensors, before any rank waits, so that every rank throws alike, and
// packs them into CollectiveArgs. `start_on` (collective_args.cpp) is its inverse. Each backend then has one function,
// `start`. The guide's page on the architecture lists the other steps.
#include "reference/comm/collective_backend.hpp"

#include <ATen/ATen.h>

#include <numeric>

#include "reference/comm/dtypes.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using WorkPtr = CollectiveBackend::WorkPtr;
using Tensors = CollectiveBackend::Tensors;

int rank_of(std::int64_t rank) { return static_cast<int>(rank); }

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

WorkPtr CollectiveBackend::refuse(Collective, std::exception_ptr problem) {
  std::rethrow_exception(std::move(problem));
}

template <typename Check>
WorkPtr CollectiveBackend::checked(CollectiveArgs& args, Check&& check) {
  try {
    check();
  } catch (...) {
    return refuse(args.collective, std::current_exception());
  }
  return start(std::move(args));
}

WorkPtr CollectiveBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  CollectiveArgs args{.collective = Collective::kBroadcast,
                      .inputs = tensors,
                      .root = rank_of(options.rootRank),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, tensors);
    check_root(args.collective, args.root, getSize());
  });
}

void CollectiveBackend::check_sums(const CollectiveArgs& args) const {
  check_argument(!args.inputs.empty(), "{}: got no tensors; expected at least one", name_of(args.collective));
  check_argument(!is_sparse(args) || args.reduce_op == c10d::ReduceOp::SUM,
                 "all_reduce: sparse tensors support only the sum; use op sum or a dense tensor");
  check_one_dtype(args.collective, args.inputs);
}

WorkPtr CollectiveBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllReduce,
                      .inputs = tensors,
                      .reduce_op = options.reduceOp,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, tensors);
    check_sums(args);
  });
}

// Like ProcessGroupGloo::allreduce, which dispatches on the layout.
WorkPtr CollectiveBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);
}

WorkPtr CollectiveBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllReduceCoalesced,
                      .inputs = tensors,
                      .reduce_op = options.reduceOp,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] { check_sums(args); });
}

WorkPtr CollectiveBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  CollectiveArgs args{.collective = Collective::kReduce,
                      .inputs = tensors,
                      .reduce_op = options.reduceOp,
                      .root = rank_of(options.rootRank),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, tensors);
    check_root(args.collective, args.root, getSize());
  });
}

// One list with a tensor per rank: on every rank, or on the root only.
void CollectiveBackend::check_list(Collective op, std::string_view what, const std::vector<Tensors>& lists,
                                   const at::Tensor& like, int root) const {
  if (root >= 0 && root != getRank()) {
    check_argument(lists.empty(), "{}: got {}s on rank {}; expected them only on the root, rank {}", name_of(op), what,
                   getRank(), root);
    return;
  }
  check_argument(lists.size() == 1, "{}: got {} {} lists{}; expected one", name_of(op), lists.size(), what,
                 root >= 0 ? " on the root" : "");
  check_count(op, fmt::format("{}s", what), lists[0].size(), static_cast<std::size_t>(getSize()));
  for (const auto& tensor : lists[0]) check_same(op, tensor, like);
}

WorkPtr CollectiveBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllGather,
                      .inputs = inputs,
                      .outputs = joined(outputs),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, inputs);
    check_list(args.collective, "output", outputs, inputs[0], /*root=*/-1);
  });
}

void CollectiveBackend::check_all_parts(Collective op, const Tensors& complete, const Tensors& parts) const {
  check_argument(complete.size() == parts.size() && !parts.empty(),
                 "{}: got {} tensors for the parts of {}; expected one per tensor, at least one", name_of(op),
                 parts.size(), complete.size());
  for (std::size_t item = 0; item < parts.size(); ++item) check_parts(op, complete[item], parts[item], getSize());
}

WorkPtr CollectiveBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllGatherIntoTensor,
                      .inputs = {input},
                      .outputs = {output},
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] { check_all_parts(args.collective, args.outputs, args.inputs); });
}

WorkPtr CollectiveBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllGatherCoalesced,
                      .inputs = inputs,
                      .outputs = joined(outputs),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_count(args.collective, "output lists", outputs.size(), static_cast<std::size_t>(getSize()));
    for (const auto& list : outputs) {
      check_count(args.collective, "outputs of a rank", list.size(), inputs.size());
      for (std::size_t item = 0; item < list.size(); ++item) check_same(args.collective, list[item], inputs[item]);
    }
  });
}

WorkPtr CollectiveBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllGatherIntoTensorCoalesced,
                      .inputs = inputs,
                      .outputs = outputs,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] { check_all_parts(args.collective, outputs, inputs); });
}

WorkPtr CollectiveBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  CollectiveArgs args{.collective = Collective::kGather,
                      .inputs = inputs,
                      .outputs = joined(outputs),
                      .root = rank_of(options.rootRank),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, inputs);
    check_root(args.collective, args.root, getSize());
    check_list(args.collective, "output", outputs, inputs[0], args.root);
  });
}

WorkPtr CollectiveBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ScatterOptions& options) {
  CollectiveArgs args{.collective = Collective::kScatter,
                      .inputs = joined(inputs),
                      .outputs = outputs,
                      .root = rank_of(options.rootRank),
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, outputs);
    check_root(args.collective, args.root, getSize());
    check_list(args.collective, "input", inputs, outputs[0], args.root);
  });
}

WorkPtr CollectiveBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ReduceScatterOptions& options) {
  CollectiveArgs args{.collective = Collective::kReduceScatter,
                      .inputs = joined(inputs),
                      .outputs = outputs,
                      .reduce_op = options.reduceOp,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_one(args.collective, outputs);
    check_argument(inputs.size() == 1, "reduce_scatter: got {} input lists; expected one", inputs.size());
    check_count(args.collective, "inputs", args.inputs.size(), static_cast<std::size_t>(getSize()));
    check_same(args.collective, outputs[0], args.inputs[static_cast<std::size_t>(getRank())]);
  });
}

WorkPtr CollectiveBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr CollectiveBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& options) {
  CollectiveArgs args{.collective = Collective::kReduceScatterTensor,
                      .inputs = inputs,
                      .outputs = outputs,
                      .reduce_op = options.reduceOp,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] { check_all_parts(args.collective, inputs, outputs); });
}

void CollectiveBackend::check_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                     std::string_view side) const {
  check_argument(tensor.dim() > 0, "all_to_all_single: the {} has no dimension 0 to split", side);
  if (splits.empty()) {
    check_argument(tensor.size(0) % getSize() == 0,
                   "all_to_all_single: {} rows of {} are not divisible by {} ranks; pass split sizes", tensor.size(0),
                   side, getSize());
    return;
  }
  const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  check_argument(static_cast<int>(splits.size()) == getSize() && sum == tensor.size(0),
                 "all_to_all_single: got {} splits of {} with sum {}; expected {} with sum {}", splits.size(), side,
                 sum, getSize(), tensor.size(0));
}

WorkPtr CollectiveBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<std::int64_t>& output_splits,
                                         std::vector<std::int64_t>& input_splits,
                                         const c10d::AllToAllOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllToAllSingle,
                      .inputs = {input},
                      .outputs = {output},
                      .input_splits = input_splits,
                      .output_splits = output_splits,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_splits(input, input_splits, "input");
    check_splits(output, output_splits, "output");
    check_argument(input.scalar_type() == output.scalar_type(),
                   "all_to_all_single: got an input of {} and an output of {}; expected one dtype",
                   dtype_name(input.scalar_type()), dtype_name(output.scalar_type()));
  });
}

WorkPtr CollectiveBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  CollectiveArgs args{.collective = Collective::kAllToAll,
                      .inputs = inputs,
                      .outputs = outputs,
                      .is_async = options.asyncOp,
                      .timeout = options.timeout};
  return checked(args, [&] {
    check_count(args.collective, "inputs", inputs.size(), static_cast<std::size_t>(getSize()));
    check_count(args.collective, "outputs", outputs.size(), static_cast<std::size_t>(getSize()));
    check_one_dtype(args.collective, joined({inputs, outputs}));
  });
}

void CollectiveBackend::check_peer(Collective op, int peer) const {
  check_argument(peer >= 0 && peer < getSize(), "{}: rank {} is not in the group; expected 0 <= rank < {}", name_of(op),
                 peer, getSize());
}

WorkPtr CollectiveBackend::send(Tensors& tensors, int destination, int tag) {
  CollectiveArgs args{.collective = Collective::kSend, .inputs = tensors, .root = destination, .tag = tag};
  return checked(args, [&] {
    check_one(args.collective, tensors);
    check_peer(args.collective, destination);
  });
}

WorkPtr CollectiveBackend::recv(Tensors& tensors, int source, int tag) {
  CollectiveArgs args{.collective = Collective::kRecv, .outputs = tensors, .root = source, .tag = tag};
  return checked(args, [&] {
    check_peer(args.collective, source);
    check_one(args.collective, tensors);
  });
}

WorkPtr CollectiveBackend::recvAnysource(Tensors& tensors, int tag) {
  CollectiveArgs args{.collective = Collective::kRecv, .outputs = tensors, .tag = tag};
  return checked(args, [&] { check_one(args.collective, tensors); });
}

WorkPtr CollectiveBackend::barrier(const c10d::BarrierOptions& options) {
  return start({.collective = Collective::kBarrier, .is_async = options.asyncOp, .timeout = options.timeout});
}

void CollectiveBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  start({.collective = Collective::kMonitoredBarrier, .is_async = false, .timeout = options.timeout})->wait(kNoTimeout);
}

}  // namespace accel
