#include "sim/backend/sim_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "reference/core/call_site.hpp"
#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

NamedReduction reduction_of(const c10d::ReduceOp& op) {
  switch (static_cast<RedOp>(op)) {
    case RedOp::SUM: return {"sum", {Reduction::kSum}};
    case RedOp::AVG: return {"mean", {Reduction::kSum, /*average=*/true}};
    case RedOp::PRODUCT: return {"product", {Reduction::kProduct}};
    case RedOp::MIN: return {"min", {Reduction::kMin}};
    case RedOp::MAX: return {"max", {Reduction::kMax}};
    case RedOp::BAND: return {"band", {Reduction::kBitwiseAnd}};
    case RedOp::BOR: return {"bor", {Reduction::kBitwiseOr}};
    case RedOp::BXOR: return {"bxor", {Reduction::kBitwiseXor}};
    default:
      throw ArgumentError(
          "premul_sum needs NCCL; Gloo and the simulator have sum, mean, product, min, max, band, bor, bxor");
  }
}

std::string_view dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kChar: return "int8";
    case at::kByte: return "uint8";
    case at::kBool: return "bool";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    default: return c10::toString(dtype);
  }
}

void check_one(const std::vector<at::Tensor>& tensors, std::string_view op) {
  check_argument(tensors.size() == 1, "{}: got {} tensors; expected one per rank", op, tensors.size());
}

void check_count(std::size_t given, std::size_t expected, std::string_view what) {
  check_argument(given == expected, "{}: got {} tensors; expected {}, one per rank", what, given, expected);
}

void check_same(const at::Tensor& tensor, const at::Tensor& like, std::string_view op) {
  check_argument(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(),
                 "{}: got a tensor of {} {}; expected {} {}, like the others", op, c10::str(tensor.sizes()),
                 c10::toString(tensor.scalar_type()), c10::str(like.sizes()), c10::toString(like.scalar_type()));
}

// Those of a dimension of one element say nothing.
std::vector<std::int64_t> strides_that_count(const at::Tensor& tensor) {
  auto strides = tensor.strides().vec();
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 1) strides[dim] = 0;
  }
  return strides;
}

// The elements of a dense tensor as they lie.
at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}); }

Call call_of(std::string_view op, const std::vector<at::Tensor>& tensors, std::string_view reduce_op = {},
             std::int64_t root = -1) {
  Call call{.op = op, .reduce_op = reduce_op, .root = static_cast<int>(root), .where = CallSite::current()};
  for (const auto& tensor : tensors) {
    check_argument(tensor.layout() == at::kSparse || tensor.is_non_overlapping_and_dense(),
                   "{}: the tensor of {} has gaps or overlaps; pass tensor.contiguous()", op, c10::str(tensor.sizes()));
    call.shapes.push_back(tensor.sizes().vec());
    const bool goes_by_memory = op.starts_with("all_reduce") || op == "broadcast" || op == "reduce";
    if (goes_by_memory && tensor.layout() != at::kSparse && !tensor.is_contiguous())
      call.strides.push_back(strides_that_count(tensor));
    call.dtype = dtype_name(tensor.scalar_type());
    call.element_bytes = static_cast<int>(tensor.element_size());
    call.bytes += tensor.numel() * call.element_bytes;
  }
  return call;
}

// That a tensor is contiguous and holds as much as `count` parts.
void check_parts(const at::Tensor& tensor, const at::Tensor& part, int count, std::string_view op) {
  check_argument(tensor.numel() == part.numel() * count && tensor.scalar_type() == part.scalar_type(),
                 "{}: {} elements of {} on one side, {} of {} on the other; expected {} times as many of one dtype", op,
                 tensor.numel(), c10::toString(tensor.scalar_type()), part.numel(), c10::toString(part.scalar_type()),
                 count);
  check_argument(tensor.is_contiguous(), "{}: the large tensor is not contiguous; pass a contiguous one", op);
}

// The P parts of a tensor whose first dimension, or whole, is cut evenly.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& part, int count, std::string_view op) {
  check_parts(tensor, part, count, op);
  std::vector<at::Tensor> parts;
  const auto flat = tensor.view({count, part.numel()});
  for (int index = 0; index < count; ++index) parts.push_back(flat[index].view(part.sizes()));
  return parts;
}

// What a rank brings to a collective, and a sample of it, so that changes meanwhile show.
struct Joined : Buffers {
  Call call;
  std::uint64_t sample = 0;
};

// Ends the run: `ranks` (world ranks) have done wrong in a collective or message that is called like this.
[[noreturn]] void fail(World& world, const Group& group, std::uint64_t sequence, const Call& call,
                       std::vector<int> ranks, const std::string& what) {
  const auto where = describe(call.where);
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync, .ranks = std::move(ranks)};
  name_call(diagnosis, call, group.name, sequence);
  diagnosis.text =
      fmt::format("{} #{} of group {}{}: {}", call.op, sequence, group.name, where.empty() ? "" : " at " + where, what);
  auto error = std::make_exception_ptr(DiagnosedError(std::move(diagnosis)));
  world.fail(error);
  std::rethrow_exception(error);
}

// Members in most of the mismatches: one that is wrong about several peers, else both sides.
std::vector<int> members_in_most(const std::vector<SplitMismatch>& mismatches, std::size_t num_members) {
  std::vector<int> counts(num_members);
  for (const auto& one : mismatches) {
    ++counts[one.from];
    if (one.to != one.from) ++counts[one.to];
  }
  std::vector<int> members;
  const int most = *std::max_element(counts.begin(), counts.end());
  for (std::size_t member = 0; member < num_members; ++member) {
    if (counts[member] == most) members.push_back(static_cast<int>(member));
  }
  return members;
}

// Where some rank's input has a NaN, for each of the inputs.
std::vector<at::Tensor> nan_positions(AllBuffers ranks) {
  std::vector<at::Tensor> any;
  for (const auto& input : ranks[0]->inputs) any.push_back(input.isnan());
  for (const auto* rank : ranks.subspan(1)) {
    for (std::size_t item = 0; item < any.size(); ++item) any[item].logical_or_(rank->inputs[item].isnan());
  }
  return any;
}

// ProcessGroup::barrier keeps a static tensor that every caller assigns: threads as ranks would race for it.
class SimProcessGroup : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return getDefaultBackend()->barrier(options);
  }
};

}  // namespace

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

c10::intrusive_ptr<SimWork> SimBackend::join(c10d::OpType type, Call call, Buffers buffers,
                                             std::vector<Tensors> results, TensorCompute compute) {
  const auto sequence = sequence_++;
  call.where = CallSite::current();
  auto joined = std::make_shared<Joined>();
  static_cast<Buffers&>(*joined) = std::move(buffers);
  joined->call = call;
  joined->sample = sample_bytes(joined->inputs);
  auto meeting =
      world_->arrive(*group_, getRank(), call, joined,
                     [this, sequence, compute = std::move(compute)](std::span<const Participant> participants) {
                       run(compute, sequence, participants);
                     });
  const bool in_place = type == c10d::OpType::ALLREDUCE || type == c10d::OpType::ALLREDUCE_COALESCED ||
                        type == c10d::OpType::REDUCE || (type == c10d::OpType::BROADCAST && call.root != getRank());
  member_.guard->issue(meeting, call, in_place ? Tensors{} : joined->inputs,
                       in_place ? joined->inputs : joined->outputs);
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, type,
                                      std::move(results));
}

void SimBackend::run(const TensorCompute& compute, std::uint64_t sequence,
                     std::span<const Participant> participants) const {
  const at::DisableRecordFunctionGuard unwatched;  // the collective itself may touch all buffers
  std::vector<Buffers*> ranks;
  std::vector<int> changed;
  const Call* call_of_changed = nullptr;
  for (std::size_t member = 0; member < participants.size(); ++member) {
    auto* joined = static_cast<Joined*>(participants[member].get());
    ranks.push_back(joined);
    if (sample_bytes(joined->inputs) == joined->sample) continue;
    changed.push_back(group_->ranks[member]);
    if (call_of_changed == nullptr) call_of_changed = &joined->call;
  }
  if (!changed.empty()) {
    const auto what = fmt::format("the tensor of {} was changed between the call and wait(); real backends race here",
                                  describe_ranks(changed));
    fail(*world_, *group_, sequence, *call_of_changed, changed, what);
  }
  compute(ranks);
}

void SimBackend::check_splits(const std::vector<SplitMismatch>& mismatches, AllBuffers ranks,
                              std::uint64_t sequence) const {
  if (mismatches.empty()) return;
  const auto members = members_in_most(mismatches, ranks.size());
  std::vector<int> culprits;
  for (const int member : members) culprits.push_back(group_->ranks[member]);
  std::sort(culprits.begin(), culprits.end());
  std::string what = "input and output splits must agree:";
  for (const auto& [from, to, sent, expected] : mismatches) {
    what += fmt::format("\n  rank {} sends {} to rank {}, which expects {}", group_->ranks[from], sent,
                        group_->ranks[to], expected);
  }
  auto call = static_cast<const Joined*>(ranks[members.front()])->call;
  for (const auto& input : ranks[members.front()]->inputs) call.shapes.push_back(input.sizes().vec());
  fail(*world_, *group_, sequence, call, culprits, what);
}

SimBackend::TensorCompute SimBackend::telling_of_lost_nan(std::string_view op, const NamedReduction& named,
                                                          ResultOf result_of, TensorCompute compute) const {
  if (named.kind.reduction != Reduction::kMin && named.kind.reduction != Reduction::kMax) return compute;
  return [this, op = std::string(op), name = named.name, sequence = sequence_, result_of = std::move(result_of),
          compute = std::move(compute)](AllBuffers ranks) {
    const auto had_nan = nan_positions(ranks);
    compute(ranks);
    for (std::size_t item = 0; item < had_nan.size(); ++item) {
      if (!had_nan[item].logical_and(result_of(ranks, item).isnan().logical_not()).any().item<bool>()) continue;
      world_->warn(
          fmt::format("{} #{} of group {}: a NaN is lost in {}, as in Gloo, which keeps the other operand; look for "
                      "NaN before reducing",
                      op, sequence, group_->name, name));
      return;
    }
  };
}

SimBackend::WorkPtr SimBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_one(tensors, "broadcast");
  const int root = static_cast<int>(options.rootRank);
  check_argument(root >= 0 && root < getSize(), "broadcast: root {} is not a rank of a group of {}", root, getSize());
  return join(c10d::OpType::BROADCAST, call_of("broadcast", tensors, {}, root), {.inputs = tensors}, {tensors},
              [root](AllBuffers ranks) { sim::broadcast(ranks, root); });
}

SimBackend::WorkPtr SimBackend::reduce_flat(Tensors& tensors, const c10d::ReduceOp& op, c10d::OpType type,
                                            std::string_view name) {
  check_argument(!tensors.empty(), "{}: got no tensor; expected at least one", name);
  const auto reduction = reduction_of(op);
  for (const auto& tensor : tensors) {
    check_argument(tensor.scalar_type() == tensors.front().scalar_type(), "{}: tensors of several dtypes; expected one",
                   name);
  }
  return join(
      type, call_of(name, tensors, reduction.name), {.inputs = tensors}, {tensors},
      telling_of_lost_nan(
          name, reduction, [](AllBuffers ranks, std::size_t item) { return ranks[0]->inputs[item]; },
          [kind = reduction.kind, parallel = parallel_for()](AllBuffers ranks) { all_reduce(ranks, kind, parallel); }));
}

SimBackend::WorkPtr SimBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(tensors, "all_reduce");
  if (tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  return reduce_flat(tensors, options.reduceOp, c10d::OpType::ALLREDUCE, "all_reduce");
}

SimBackend::WorkPtr SimBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(tensors, "all_reduce");
  check_argument(static_cast<RedOp>(options.reduceOp) == RedOp::SUM, "all_reduce: sparse tensors can only be summed");
  return join(c10d::OpType::_ALLREDUCE_SPARSE, call_of("all_reduce", tensors, "sum"), {.inputs = tensors}, {tensors},
              [](AllBuffers ranks) { all_reduce_sparse(ranks); });
}

SimBackend::WorkPtr SimBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return reduce_flat(tensors, options.reduceOp, c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced");
}

SimBackend::WorkPtr SimBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_one(tensors, "reduce");
  const auto reduction = reduction_of(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  check_argument(root >= 0 && root < getSize(), "reduce: root {} is not a rank of a group of {}", root, getSize());
  auto work =
      join(c10d::OpType::REDUCE, call_of("reduce", tensors, reduction.name, root), {.inputs = tensors}, {tensors},
           telling_of_lost_nan(
               "reduce", reduction, [root](AllBuffers ranks, std::size_t item) { return ranks[root]->inputs[item]; },
               [kind = reduction.kind, root, parallel = parallel_for()](AllBuffers ranks) {
                 sim::reduce(ranks, kind, root, parallel);
               }));
  if (getRank() != root) work->mark_partial();
  return work;
}

SimBackend::WorkPtr SimBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) {
  check_one(inputs, "all_gather");
  check_argument(outputs.size() == 1, "all_gather: got {} output lists; expected one", outputs.size());
  check_count(outputs[0].size(), getSize(), "all_gather outputs");
  for (const auto& output : outputs[0]) check_same(output, inputs[0], "all_gather");
  return join(c10d::OpType::ALLGATHER, call_of("all_gather", inputs), {.inputs = inputs, .outputs = outputs[0]},
              outputs, [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  check_parts(output, input, getSize(), "all_gather_into_tensor");
  return join(c10d::OpType::_ALLGATHER_BASE, call_of("all_gather_into_tensor", {input}),
              {.inputs = {input}, .outputs = {output}}, {{output}},
              [parallel = parallel_for()](AllBuffers ranks) { all_gather_into_tensor(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions&) {
  check_count(outputs.size(), getSize(), "all_gather_coalesced output lists");
  Buffers buffers{.inputs = inputs};
  for (const auto& list : outputs) {
    check_count(list.size(), inputs.size(), "all_gather_coalesced outputs of a rank");
    for (std::size_t item = 0; item < list.size(); ++item) check_same(list[item], inputs[item], "all_gather_coalesced");
    buffers.outputs.insert(buffers.outputs.end(), list.begin(), list.end());
  }
  return join(c10d::OpType::ALLGATHER_COALESCED, call_of("all_gather_coalesced", inputs), std::move(buffers), outputs,
              [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions&) {
  check_argument(outputs.size() == inputs.size(), "all_gather_into_tensor_coalesced: {} outputs for {} inputs",
                 outputs.size(), inputs.size());
  Buffers buffers{.inputs = inputs};
  buffers.outputs.resize(inputs.size() * getSize());
  for (std::size_t item = 0; item < inputs.size(); ++item) {
    const auto parts = parts_of(outputs[item], inputs[item], getSize(), "all_gather_into_tensor_coalesced");
    for (int rank = 0; rank < getSize(); ++rank) buffers.outputs[rank * inputs.size() + item] = parts[rank];
  }
  return join(c10d::OpType::COALESCED, call_of("all_gather_into_tensor_coalesced", inputs), std::move(buffers),
              {outputs}, [parallel = parallel_for()](AllBuffers ranks) { all_gather(ranks, parallel); });
}

SimBackend::WorkPtr SimBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  check_one(inputs, "gather");
  const int root = static_cast<int>(options.rootRank);
  check_argument(root >= 0 && root < getSize(), "gather: root {} is not a rank of a group of {}", root, getSize());
  Buffers buffers{.inputs = inputs};
  if (getRank() == root) {
    check_argument(outputs.size() == 1, "gather: got {} output lists on the root; expected one", outputs.size());
    check_count(outputs[0].size(), getSize(), "gather outputs");
    for (const auto& output : outputs[0]) check_same(output, inputs[0], "gather");
    buffers.outputs = outputs[0];
  } else {
    check_argument(outputs.empty(), "gather: got outputs on rank {}; only the root, {}, has any", getRank(), root);
  }
  return join(c10d::OpType::GATHER, call_of("gather", inputs, {}, root), std::move(buffers), outputs,
              [root](AllBuffers ranks) { sim::gather(ranks, root); });
}

SimBackend::WorkPtr SimBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  check_one(outputs, "scatter");
  const int root = static_cast<int>(options.rootRank);
  check_argument(root >= 0 && root < getSize(), "scatter: root {} is not a rank of a group of {}", root, getSize());
  Buffers buffers{.outputs = outputs};
  if (getRank() == root) {
    check_argument(inputs.size() == 1, "scatter: got {} input lists on the root; expected one", inputs.size());
    check_count(inputs[0].size(), getSize(), "scatter inputs");
    for (const auto& input : inputs[0]) check_same(input, outputs[0], "scatter");
    buffers.inputs = inputs[0];
  } else {
    check_argument(inputs.empty(), "scatter: got inputs on rank {}; only the root, {}, has any", getRank(), root);
  }
  return join(c10d::OpType::SCATTER, call_of("scatter", outputs, {}, root), std::move(buffers), {outputs},
              [root](AllBuffers ranks) { sim::scatter(ranks, root); });
}

SimBackend::WorkPtr SimBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  check_one(outputs, "reduce_scatter");
  check_argument(inputs.size() == 1, "reduce_scatter: got {} input lists; expected one", inputs.size());
  check_count(inputs[0].size(), getSize(), "reduce_scatter inputs");
  const auto reduction = reduction_of(options.reduceOp);
  check_same(outputs[0], inputs[0][getRank()], "reduce_scatter");
  return join(
      c10d::OpType::REDUCE_SCATTER, call_of("reduce_scatter", inputs[0], reduction.name),
      {.inputs = inputs[0], .outputs = outputs}, {outputs},
      telling_of_lost_nan(
          "reduce_scatter", reduction, [](AllBuffers ranks, std::size_t part) { return ranks[part]->outputs[0]; },
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
  check_argument(outputs.size() == inputs.size() && !inputs.empty(), "reduce_scatter_tensor: {} outputs for {} inputs",
                 outputs.size(), inputs.size());
  for (std::size_t item = 0; item < inputs.size(); ++item)
    parts_of(inputs[item], outputs[item], getSize(), "reduce_scatter_tensor");
  const auto reduction = reduction_of(options.reduceOp);
  const auto whole = [](AllBuffers ranks, std::size_t item) {
    Tensors parts;
    for (const auto* rank : ranks) parts.push_back(rank->outputs[item].flatten());
    return at::cat(parts).view(ranks[0]->inputs[item].sizes());
  };
  return join(c10d::OpType::_REDUCE_SCATTER_BASE, call_of("reduce_scatter_tensor", inputs, reduction.name),
              {.inputs = inputs, .outputs = outputs}, {outputs},
              telling_of_lost_nan("reduce_scatter_tensor", reduction, whole,
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
      check_argument(tensor.size(0) % getSize() == 0, "all_to_all_single: {} rows of {} do not divide by {} ranks",
                     tensor.size(0), side, getSize());
      return;
    }
    std::int64_t sum = 0;
    for (const auto split : splits) sum += split;
    check_argument(static_cast<int>(splits.size()) == getSize() && sum == tensor.size(0),
                   "all_to_all_single: {} splits of {} with sum {}; expected {} with sum {}", splits.size(), side, sum,
                   getSize(), tensor.size(0));
  };
  check_side(input, input_splits, "input");
  check_side(output, output_splits, "output");
  check_argument(input.scalar_type() == output.scalar_type(), "all_to_all_single: an input of {} and an output of {}",
                 dtype_name(input.scalar_type()), dtype_name(output.scalar_type()));
  // Ranks may send different numbers of rows: only the dtype is compared here, the splits when all have arrived.
  Call call{.op = "all_to_all_single",
            .dtype = dtype_name(input.scalar_type()),
            .bytes = static_cast<std::int64_t>(input.nbytes()),
            .element_bytes = static_cast<int>(input.element_size())};
  return join(c10d::OpType::ALLTOALL_BASE, std::move(call),
              {.inputs = {input}, .outputs = {output}, .input_splits = input_splits, .output_splits = output_splits},
              {{output}}, [this, sequence = sequence_](AllBuffers ranks) {
                check_splits(all_to_all_single_mismatches(ranks), ranks, sequence);
                all_to_all_single(ranks);
              });
}

SimBackend::WorkPtr SimBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  check_count(inputs.size(), getSize(), "all_to_all inputs");
  check_count(outputs.size(), getSize(), "all_to_all outputs");
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const auto& tensor : *tensors)
      check_argument(tensor.scalar_type() == inputs[0].scalar_type(),
                     "all_to_all: tensors of {} and {}; expected one dtype", dtype_name(inputs[0].scalar_type()),
                     dtype_name(tensor.scalar_type()));
  }
  Call call{.op = "all_to_all",
            .dtype = dtype_name(inputs[0].scalar_type()),
            .element_bytes = static_cast<int>(inputs[0].element_size())};
  for (const auto& input : inputs) call.bytes += static_cast<std::int64_t>(input.nbytes());
  return join(c10d::OpType::ALLTOALL, std::move(call), {.inputs = inputs, .outputs = outputs}, {outputs},
              [this, sequence = sequence_](AllBuffers ranks) {
                check_splits(all_to_all_mismatches(ranks), ranks, sequence);
                sim::all_to_all(ranks);
              });
}

SimBackend::WorkPtr SimBackend::send(Tensors& tensors, int destination, int tag) {
  check_one(tensors, "send");
  check_argument(destination >= 0 && destination < getSize(), "send: rank {} is not in a group of {}", destination,
                 getSize());
  auto copy = std::make_shared<Buffers>(Buffers{.inputs = {tensors[0].detach().clone()}});
  const auto call = call_of("send", tensors);
  auto meeting = world_->send(*group_, getRank(), destination, tag, call, std::move(copy));
  member_.guard->issue(meeting, call, tensors, {});
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank, c10d::OpType::SEND,
                                      std::vector<Tensors>{});
}

SimBackend::WorkPtr SimBackend::receive(Tensors& tensors, int source, int tag) {
  check_one(tensors, "recv");
  auto buffers = std::make_shared<Buffers>(Buffers{.outputs = tensors});
  const auto call = call_of("recv", tensors);
  const auto deliver = [this, call](const Participant& sent, const Participant& received, std::uint64_t sequence) {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
    const auto& from = static_cast<const Buffers*>(sent.get())->inputs[0];
    auto& to = static_cast<Buffers*>(received.get())->outputs[0];
    if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel()) {
      const auto what =
          fmt::format("{} elements of {} were sent, the tensor of rank {} has {} of {}", from.numel(),
                      c10::toString(from.scalar_type()), member_.rank, to.numel(), c10::toString(to.scalar_type()));
      fail(*world_, *group_, sequence, call, {member_.rank}, what);
    }
    in_memory_order(to).copy_(in_memory_order(from));
  };
  auto meeting = world_->receive(*group_, source, getRank(), tag, call, std::move(buffers), deliver);
  member_.guard->issue(meeting, call, {}, tensors);
  return c10::make_intrusive<SimWork>(world_, member_.guard, std::move(meeting), member_.rank,
                                      source < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                                      std::vector<Tensors>{tensors});
}

SimBackend::WorkPtr SimBackend::recv(Tensors& tensors, int source, int tag) {
  check_argument(source >= 0 && source < getSize(), "recv: rank {} is not in a group of {}", source, getSize());
  return receive(tensors, source, tag);
}

SimBackend::WorkPtr SimBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, /*source=*/-1, tag);
}

SimBackend::WorkPtr SimBackend::barrier(const c10d::BarrierOptions&) {
  return join(c10d::OpType::BARRIER, {.op = "barrier"}, {}, {}, [](AllBuffers) {});
}

void SimBackend::monitoredBarrier(const c10d::BarrierOptions&, bool /*wait_all_ranks*/) {
  join(c10d::OpType::BARRIER, {.op = "monitored_barrier"}, {}, {}, [](AllBuffers) {})->wait(kNoTimeout);
}

void corrupt_buffers(const Participant& participant, const Corruption& corruption) {
  const c10::NoGradGuard no_grad;
  auto& joined = *static_cast<Joined*>(participant.get());
  auto& tensor = corruption.bit && !joined.outputs.empty() ? joined.outputs.front() : joined.inputs.front();
  if (corruption.value) {
    in_memory_order(tensor)[0].fill_(*corruption.value);
    joined.sample = sample_bytes(joined.inputs);
  } else {
    const auto bit = *corruption.bit % (static_cast<std::int64_t>(tensor.nbytes()) * 8);
    static_cast<unsigned char*>(tensor.data_ptr())[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Member member, const std::string& name,
                                                          const std::vector<int>& ranks) {
  auto group = member.world->group(name, ranks);
  const int group_rank = group->group_rank_of(member.rank);
  check_argument(group_rank >= 0, "group {}: rank {} is not a member of {}", name, member.rank, describe_ranks(ranks));
  auto backend = c10::make_intrusive<SimBackend>(std::move(member), std::move(group), group_rank);
  auto process_group = c10::make_intrusive<SimProcessGroup>(group_rank, static_cast<int>(ranks.size()));
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    process_group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  process_group->setGroupName(name);
  return process_group;
}

}  // namespace accel::sim
