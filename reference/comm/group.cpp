// The wrapper around c10d::ProcessGroup. Everything above this file names ranks, groups and operations;
// everything below is c10d's interface, which Gloo, NCCL and the simulator implement. Each collective gets a
// sequence number per group here, so that messages of different ranks about the same collective can be matched.
#include "reference/comm/group.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "reference/comm/dtypes.hpp"
#include "reference/comm/exchanged_tensor.hpp"
#include "reference/comm/transport_error.hpp"
#include "reference/core/error_text.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"

namespace accel {
namespace {

// An explicit mapping: the header is free of c10d, and nothing depends on the values of its enumerators.
c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kMean: return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kBitwiseAnd: return c10d::ReduceOp::BAND;
    case ReduceOp::kBitwiseOr: return c10d::ReduceOp::BOR;
    case ReduceOp::kBitwiseXor: return c10d::ReduceOp::BXOR;
  }
  throw InternalError("unknown ReduceOp");
}

// Converts exceptions of c10d's backends to CommError with the rank and the operation. Errors of this library
// pass through unchanged: the simulator's already contain both.
template <typename F>
auto with_context(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw comm_error(what, error);
  }
}

// Backends access the memory of a tensor as one block. With gaps, Gloo would also reduce the bytes between
// elements.
void check_dense(const at::Tensor& tensor, std::string_view op) {
  check_argument(tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense(),
                 "{}: the tensor of shape {} has gaps or overlaps in memory; pass tensor.contiguous()", op,
                 c10::str(tensor.sizes()));
}

// The same for a contiguous tensor whose rows go to several ranks, shape (rows, bytes).
at::Tensor rows_as_exchanged(const at::Tensor& tensor) {
  if (is_exchanged(tensor.scalar_type())) return tensor;
  const auto rows = tensor.size(0);
  const auto bytes = c10::multiply_integers(tensor.sizes().slice(1)) * static_cast<std::int64_t>(tensor.element_size());
  return as_exchanged(tensor).view({rows, bytes});
}

bool goes_through_nccl(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.is_cuda() && group.getBackend(c10::DeviceType::CUDA)->getBackendName() == "nccl";
}

void check_contiguous(const at::Tensor& tensor, std::string_view op, std::string_view what) {
  check_argument(tensor.is_contiguous(), "{}: the {} of shape {} is not contiguous; pass a contiguous tensor", op, what,
                 c10::str(tensor.sizes()));
}

// Checked also where a backend would accept more: a program means the same on each. Complex numbers are summed as
// pairs.
void check_reduction(c10d::ProcessGroup& group, const at::Tensor& tensor, ReduceOp op, std::string_view name) {
  const auto dtype = tensor.scalar_type();
  const bool is_sum = op == ReduceOp::kSum || (op == ReduceOp::kMean && dtype != at::kComplexHalf);
  check_argument(is_exchanged(dtype) || (c10::isComplexType(dtype) && is_sum),
                 "{}: Gloo and NCCL do not reduce {} this way; convert the tensor, for example to {}", name,
                 dtype_name(dtype), c10::isIntegralType(dtype, /*includeBool=*/true) ? "int64" : "float32");
  const bool is_bitwise = op == ReduceOp::kBitwiseAnd || op == ReduceOp::kBitwiseOr || op == ReduceOp::kBitwiseXor;
  check_argument(!is_bitwise || !goes_through_nccl(group, tensor),
                 "{}: NCCL has no bitwise reductions; reduce a copy on the CPU, which goes through Gloo: tensor.cpu()",
                 name);
}

void check_message(c10d::ProcessGroup& group, const at::Tensor& tensor, int tag, std::string_view name) {
  check_argument(
      tag == 0 || !goes_through_nccl(group, tensor),
      "{}: got tag {}, but NCCL matches messages in the order of their calls and ignores tags; use tag 0, or "
      "send a copy on the CPU, which goes through Gloo",
      name, tag);
}

}  // namespace

CommError comm_error(const std::string& what, const std::exception& error) {
  return comm_error(what, std::string_view(text_of(error)));
}

// Defined here because c10d::Work is incomplete in the header.
Work::Work(c10::intrusive_ptr<c10d::Work> work, std::string what) : work_(std::move(work)), what_(std::move(what)) {}
Work::~Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;

void Work::wait() {
  if (work_) with_context(what_, [&] { return work_->wait(); });
}

// Copies of a Group share this state and therefore the sequence. A null process_group means a single rank:
// collectives then return what one rank would see, without touching c10d.
struct Group::State {
  std::string name = "world";
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::uint64_t sequence = 0;

  std::string next(std::string_view op) {
    return fmt::format("rank {}: {} #{} of group {}", process_group->getRank(), op, sequence++, name);
  }
};

Group::Group() : state_(std::make_shared<State>()) {}

Group::Group(std::string name, c10::intrusive_ptr<c10d::ProcessGroup> process_group)
    : state_(std::make_shared<State>(State{std::move(name), std::move(process_group)})) {}

int Group::rank() const { return state_->process_group ? state_->process_group->getRank() : 0; }
int Group::size() const { return state_->process_group ? state_->process_group->getSize() : 1; }
const std::string& Group::name() const { return state_->name; }
const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const { return state_->process_group; }

Group Group::replace_everywhere(const Group& other) {
  Group before(state_->name, state_->process_group);
  *state_ = *other.state_;
  return before;
}

Work Group::all_reduce(at::Tensor& tensor, ReduceOp op, std::source_location where) const {
  const CallSite site(where);
  check_dense(tensor, "all_reduce");
  if (!state_->process_group) return {};
  check_reduction(*state_->process_group, tensor, op, "all_reduce");
  auto what = state_->next("all_reduce");
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  return with_context(what, [&] { return Work(state_->process_group->allreduce(tensors, options), what); });
}

Work Group::broadcast(at::Tensor& tensor, int root, std::source_location where) const {
  const CallSite site(where);
  check_argument(root >= 0 && root < size(),
                 "broadcast: root {} is not a rank of group {}; expected 0 or more and less than its size {}", root,
                 name(), size());
  check_dense(tensor, "broadcast");
  if (!state_->process_group) return {};
  auto what = state_->next("broadcast");
  std::vector<at::Tensor> tensors{as_exchanged(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return with_context(what, [&] { return Work(state_->process_group->broadcast(tensors, options), what); });
}

// Blocks, unlike the others, because it allocates its result. Returns detached tensors: gradients do not flow
// through gathered values, as in accelerate/utils/operations.py, _gpu_gather. Empty inputs return before the
// collective; shapes must be equal on all ranks, so all ranks return.
at::Tensor Group::all_gather(const at::Tensor& tensor, std::source_location where) const {
  const CallSite site(where);
  const c10::NoGradGuard no_grad;
  auto input = tensor.detach().contiguous();
  if (!state_->process_group) return input.clone();
  auto sizes = input.sizes().vec();
  check_argument(!sizes.empty(), "all_gather: the tensor has no dimensions; expected shape (n, ...)");
  sizes[0] *= size();
  auto output = at::empty(sizes, input.options());
  if (input.numel() == 0) return output;
  auto what = state_->next("all_gather");
  auto all = as_exchanged(output), own = as_exchanged(input);
  with_context(what, [&] { return Work(state_->process_group->_allgather_base(all, own), what); }).wait();
  return output;
}

// c10d takes tensors by non-const reference, hence the copies of the handles here and in reduce_scatter.
Work Group::all_gather_into(at::Tensor& output, const at::Tensor& input, std::source_location where) const {
  const CallSite site(where);
  check_argument(input.dim() == 1 && output.dim() == 1 && output.numel() == input.numel() * size(),
                 "all_gather_into: input has {} and output {} elements; expected 1-d tensors with n and {} * n",
                 input.numel(), output.numel(), size());
  if (input.numel() == 0) return {};
  if (!state_->process_group) {
    if (!output.is_alias_of(input)) output.copy_(input);
    return {};
  }
  check_argument(input.scalar_type() == output.scalar_type(),
                 "all_gather_into: got an input of {} and an output of {}; "
                 "expected one dtype",
                 dtype_name(input.scalar_type()), dtype_name(output.scalar_type()));
  check_contiguous(output, "all_gather_into", "output");
  auto what = state_->next("all_gather_into");
  auto all = as_exchanged(output), own = as_exchanged(input.contiguous());
  return with_context(what, [&] { return Work(state_->process_group->_allgather_base(all, own), what); });
}

Work Group::reduce_scatter(at::Tensor& output, const at::Tensor& input, std::source_location where) const {
  const CallSite site(where);
  check_argument(input.dim() == 1 && output.dim() == 1 && input.numel() == output.numel() * size(),
                 "reduce_scatter: input has {} and output {} elements; expected 1-d tensors with {} * n and n",
                 input.numel(), output.numel(), size());
  if (input.numel() == 0) return {};
  if (!state_->process_group) {
    output.copy_(input);
    return {};
  }
  check_reduction(*state_->process_group, input, ReduceOp::kSum, "reduce_scatter");
  auto what = state_->next("reduce_scatter");
  auto all = input;
  return with_context(what, [&] { return Work(state_->process_group->_reduce_scatter_base(output, all), what); });
}

// Every rank takes part, also one without rows: the others may have some.
Work Group::all_to_all(at::Tensor& output, const at::Tensor& input, std::vector<std::int64_t> output_splits,
                       std::vector<std::int64_t> input_splits, std::source_location where) const {
  const CallSite site(where);
  check_argument(input.dim() >= 1 && output.dim() >= 1, "all_to_all: a tensor has no dimensions; expected (rows, ...)");
  check_contiguous(output, "all_to_all", "output");
  if (!state_->process_group) {
    output.copy_(input);
    return {};
  }
  check_argument(input.scalar_type() == output.scalar_type(),
                 "all_to_all: got an input of {} and an output of {}; "
                 "expected one dtype",
                 dtype_name(input.scalar_type()), dtype_name(output.scalar_type()));
  auto what = state_->next("all_to_all");
  auto sent = rows_as_exchanged(input.contiguous()), received = rows_as_exchanged(output);
  return with_context(what, [&] {
    return Work(state_->process_group->alltoall_base(received, sent, output_splits, input_splits), what);
  });
}

void Group::barrier(std::source_location where) const {
  const CallSite site(where);
  if (!state_->process_group) return;
  auto what = state_->next("barrier");
  // Not ProcessGroup::barrier, which uses a static tensor: ranks that are threads would race for it.
  with_context(what, [&] { return Work(state_->process_group->getDefaultBackend()->barrier(), what); }).wait();
}

// Point-to-point calls do not advance the sequence: only two ranks take part, and the numbers of the ranks of a
// group would diverge.
Work Group::send(at::Tensor& tensor, int destination, int tag, std::source_location where) const {
  const CallSite site(where);
  check_contiguous(tensor, "send", "tensor");
  check_argument(state_->process_group != nullptr, "send: the group has only one rank; expected at least two");
  std::vector<at::Tensor> tensors{as_exchanged(tensor)};
  check_message(*state_->process_group, tensor, tag, "send");
  auto what = fmt::format("rank {}: send to {} of group {}", rank(), destination, name());
  return with_context(what, [&] { return Work(state_->process_group->send(tensors, destination, tag), what); });
}

Work Group::recv(at::Tensor& tensor, int source, int tag, std::source_location where) const {
  const CallSite site(where);
  check_contiguous(tensor, "recv", "tensor");
  check_argument(state_->process_group != nullptr, "recv: the group has only one rank; expected at least two");
  std::vector<at::Tensor> tensors{as_exchanged(tensor)};
  check_message(*state_->process_group, tensor, tag, "recv");
  auto what = fmt::format("rank {}: recv from {} of group {}", rank(), source, name());
  return with_context(what, [&] { return Work(state_->process_group->recv(tensors, source, tag), what); });
}

}  // namespace accel
