#include "reference/accelerator/operations.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::operations {

at::Tensor gather(const Group& group, const at::Tensor& tensor) {
  // A scalar is gathered as one row, as in accelerate/utils/operations.py, _gpu_gather_one.
  return group.all_gather(tensor.dim() == 0 ? tensor.reshape({1}) : tensor);
}

at::Tensor gather_with_gradients(const Group& group, const at::Tensor& tensor) {
  return parallel::detail::gathered_copied(tensor.dim() == 0 ? tensor.reshape({1}) : tensor, /*dim=*/0, group);
}

at::Tensor reduce(const Group& group, const at::Tensor& tensor, const std::string& reduction, double scale) {
  check_argument(reduction == "sum" || reduction == "mean" || reduction == "max" || reduction == "none",
                 "reduce: expected sum, mean, max or none, got '{}'", reduction);
  check_argument(reduction != "mean" || tensor.is_floating_point() || group.size() == 1,
                 "reduce: the mean of integers of type {} is not an integer; convert the tensor to a floating dtype",
                 c10::toString(tensor.scalar_type()));
  // Collectives are not recorded by autograd: the result is a metric, and its gradient would need a collective too.
  const c10::NoGradGuard no_grad;
  auto result = tensor.detach().clone();
  group.all_reduce(result, reduction == "max" ? ReduceOp::kMax : ReduceOp::kSum).wait();
  if (reduction == "mean" && group.size() > 1) result.div_(group.size());
  if (scale != 1.0) result.mul_(scale);
  return result;
}

at::Tensor pad_across_processes(const Group& group, const at::Tensor& tensor, PadOptions options) {
  if (group.size() == 1 || options.dim >= tensor.dim() || options.dim < -tensor.dim()) return tensor;
  const auto dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  // All sizes travel, not only that of `dim`, as in accelerate/utils/operations.py: the same bytes on the wire.
  const auto size = at::tensor(tensor.sizes(), at::kLong);
  const auto sizes = group.all_gather(size.unsqueeze(0)).select(1, dim);
  const auto largest = sizes.max().item<std::int64_t>();
  if (largest == tensor.size(dim)) return tensor;
  auto shape = tensor.sizes().vec();
  shape[dim] = largest;
  auto padded = at::full(shape, options.pad_index, tensor.options());
  const auto start = options.pad_first ? largest - tensor.size(dim) : 0;
  padded.narrow(dim, start, tensor.size(dim)).copy_(tensor.detach());
  return padded;
}

at::Tensor pad_input_tensors(const at::Tensor& tensor, PadInputOptions options) {
  check_argument(options.num_processes >= 1, "pad_input_tensors: num_processes: expected 1 or more, got {}",
                 options.num_processes);
  check_argument(options.dim >= -tensor.dim() && options.dim < tensor.dim(),
                 "pad_input_tensors: a tensor of {} dimensions has no dimension {}", tensor.dim(), options.dim);
  // Not a copy of accelerate/utils/operations.py, pad_input_tensors, which appends num_processes - batch_size //
  // num_processes rows: the result need not be a multiple of num_processes.
  const auto missing = (options.num_processes - options.batch_size % options.num_processes) % options.num_processes;
  if (missing == 0) return tensor;
  auto shape = tensor.sizes().vec();
  shape[options.dim < 0 ? options.dim + tensor.dim() : options.dim] = missing;
  return at::cat({tensor, at::zeros(shape, tensor.options())}, options.dim);
}

at::Tensor copy_tensor_to_devices(RankContext& context, const std::optional<at::Tensor>& tensor) {
  using Form = std::tuple<bool, std::int64_t, std::vector<std::int64_t>>;  // is given, dtype, sizes
  const bool is_own = tensor && tensor->defined();
  const auto own =
      is_own ? Form(true, static_cast<std::int64_t>(tensor->scalar_type()), tensor->sizes().vec()) : Form(false, 0, {});
  const auto forms = gather_object(context, std::vector<Form>{own});
  std::vector<int> givers;
  for (std::size_t rank = 0; rank < forms.size(); ++rank) {
    if (std::get<0>(forms[rank])) givers.push_back(static_cast<int>(rank));
  }
  check_argument(givers.size() == 1, "copy_tensor_to_devices: expected a tensor from one rank, got one from {}{}",
                 givers.empty() ? "none" : "ranks ", fmt::join(givers, ", "));
  const auto& [is_given, dtype, sizes] = forms[static_cast<std::size_t>(givers.front())];
  // Contiguous on every rank: a broadcast sends memory as it lies.
  auto copy = is_own ? tensor->detach().to(context.device).clone(at::MemoryFormat::Contiguous)
                     : at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(dtype)).device(context.device));
  broadcast(context.world, copy, givers.front());
  return copy;
}

void verify(const Group& group, const char* operation, c10::Device device, const std::vector<at::Tensor>& tensors,
            Compared compared) {
  std::vector<std::string> shapes;
  std::vector<std::vector<std::int64_t>> must_agree;
  bool is_placed = true;
  for (const auto& tensor : tensors) {
    shapes.push_back(fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
    must_agree.push_back(compared == Compared::kShapes ? tensor.sizes().vec() : std::vector{tensor.dim()});
    if (tensor.device().type() != device.type()) {
      is_placed = false;
      shapes.back() += fmt::format(" on {}", tensor.device().str());
    }
  }
  // Every rank gathers what all ranks have and draws the same conclusion, so either all ranks throw or none does.
  const auto of_ranks = detail::gather_trees(group, std::tuple(shapes, must_agree, is_placed));
  const auto& expected = std::get<1>(of_ranks.front());
  const bool fits = std::all_of(of_ranks.begin(), of_ranks.end(),
                                [&](const auto& rank) { return std::get<2>(rank) && std::get<1>(rank) == expected; });
  if (fits) return;
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    lines.push_back(fmt::format("rank {}: {}", rank, fmt::join(std::get<0>(of_ranks[rank]), " ")));
  const auto device_name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  const auto ranks = fmt::format("{}", fmt::join(lines, "; "));
  throw DistributedOperationException(
      compared == Compared::kShapes
          ? fmt::format("{}: the tensors of the ranks do not match; expected equal shapes, on {}; {}; use "
                        "pad_across_processes to make the shapes equal",
                        operation, device_name, ranks)
          : fmt::format("{}: the tensors of the ranks do not match; expected equal numbers of dimensions, on {}; {}",
                        operation, device_name, ranks));
}

// Source: accelerate/state.py, PartialState.split_between_processes.
ItemRange split_items(std::int64_t num_items, int num_ranks, int rank) {
  const auto each = num_items / num_ranks, extras = num_items % num_ranks;
  const auto begin = rank * each + std::min<std::int64_t>(rank, extras);
  return {.begin = begin, .end = begin + each + (rank < extras ? 1 : 0)};
}

void broadcast(const Group& group, at::Tensor& tensor, int from_process) {
  const c10::NoGradGuard no_grad;
  group.broadcast(tensor, from_process).wait();
}

}  // namespace accel::operations
