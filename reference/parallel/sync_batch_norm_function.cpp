#include "reference/parallel/sync_batch_norm_function.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>

#include "reference/core/errors.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A context's saved_data stores IValues only. The listener is captured as well: CUDA backward runs on another thread,
// where current_listener() would return nothing.
struct GroupHolder : torch::CustomClassHolder {
  GroupHolder(Group group_of_ranks, std::shared_ptr<StepObserver> listener_of_rank)
      : group(std::move(group_of_ranks)), listener(std::move(listener_of_rank)) {}
  Group group;
  std::shared_ptr<StepObserver> listener;
};

// The kernels accept both memory formats, and channels-last inputs should give channels-last outputs, as in torch.
at::Tensor laid_out(const at::Tensor& tensor) {
  const bool is_channels_last =
      tensor.is_contiguous(at::MemoryFormat::ChannelsLast) || tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  return is_channels_last ? tensor : tensor.contiguous();
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  // Function::apply rejects undefined tensors as inputs of a node; they are passed as nullopt.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given,
                            const std::optional<at::Tensor>& given_weight, const std::optional<at::Tensor>& given_bias,
                            const SyncBatchNormArguments& arguments, const Group& group) {
    const auto input = laid_out(given), weight = given_weight.value_or(at::Tensor()),
               bias = given_bias.value_or(at::Tensor());
    // Every rank takes part, even one without rows: its zeros are filtered out by global_statistics.
    const auto all = group.all_gather(local_statistics(input, arguments.eps).unsqueeze(0));
    const auto statistics = global_statistics(all, input, arguments);
    context->save_for_backward({input, weight, statistics.mean, statistics.invstd, statistics.counts});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group, current_listener()));
    return normalized(input, weight, bias, statistics, arguments.eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1];
    const GlobalStatistics statistics{.mean = saved[2], .invstd = saved[3], .counts = saved[4]};
    const auto grad_output = laid_out(grad_outputs[0]);
    const auto local = local_gradients(grad_output, input, weight, statistics);
    at::Tensor of_input;
    // Parameters get local gradients, which DistributedDataParallel averages; only the input's gradient needs sums over
    // the ranks. Whether it is needed is equal on all ranks, so the all-reduce matches.
    if (context->needs_input_grad(0)) {
      const auto capsule = context->saved_data["group"].toCapsule();
      const auto& holder = static_cast<const GroupHolder&>(*capsule);
      const PhaseScope phase(holder.listener.get(), "batch_norm");  // traffic of activations, not parameter gradients
      auto sums = at::cat({local.sum_dy, local.sum_dy_xmu});
      holder.group.all_reduce(sums).wait();
      const auto of_all = sums.chunk(2);
      of_input = input_gradient(grad_output, input, weight, statistics, of_all[0], of_all[1]);
    }
    const auto of_parameter = [&](std::size_t place, const at::Tensor& gradient) {
      return weight.defined() && context->needs_input_grad(place) ? gradient.to(weight.scalar_type()) : at::Tensor();
    };
    return {of_input, of_parameter(1, local.weight), of_parameter(2, local.bias), at::Tensor(), at::Tensor()};
  }
};

// All dimensions except the channels'.
std::vector<std::int64_t> other_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// The dtype in which statistics of a half-precision input are computed: 16 bits lose the variance of a large batch.
at::ScalarType statistics_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}
at::Tensor widened(const at::Tensor& tensor) { return tensor.to(statistics_dtype(tensor.scalar_type())); }

// Reads the counts of the other ranks only if this rank alone has too few values: on a device the host waits for them.
// If there are too few over all ranks, every rank gets here.
void check_count(const at::Tensor& counts, const at::Tensor& input) {
  if (input.numel() > input.size(1)) return;
  const auto count = counts.sum().item<double>();
  check_argument(count > 1,
                 "SyncBatchNorm: expected more than 1 value per channel when training, over all ranks, got {:.0f}",
                 count);
}

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const SyncBatchNormArguments& arguments, const Group& group) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, optional(arguments.weight), optional(arguments.bias), arguments, group);
}

at::Tensor local_statistics(const at::Tensor& input, double eps) {
  const auto num_channels = input.size(1);
  // float64 on the CPU, so that merging the ranks' statistics adds no noticeable rounding error to that of var_mean.
  const auto dtype = input.is_cuda() ? statistics_dtype(input.scalar_type()) : at::kDouble;
  if (input.numel() == 0) return at::zeros({2 * num_channels + 1}, input.options().dtype(dtype));
  const auto count = at::full({1}, static_cast<double>(input.numel() / num_channels), input.options().dtype(dtype));
  if (input.is_cuda()) {
    const auto [mean, invstd] = at::batch_norm_stats(input, eps);
    return at::cat({mean, invstd, count});
  }
  const auto [variance, mean] = at::var_mean(widened(input), other_dims(input), /*correction=*/0);
  return at::cat({mean.to(dtype), variance.to(dtype) * count, count});
}

GlobalStatistics global_statistics(const at::Tensor& all, const at::Tensor& input,
                                   const SyncBatchNormArguments& arguments) {
  const auto num_channels = input.size(1);
  const auto counts_of = [&](const at::Tensor& statistics) { return statistics.select(1, 2 * num_channels); };
  const auto means_of = [&](const at::Tensor& statistics) { return statistics.slice(1, 0, num_channels); };
  const auto spreads_of = [&](const at::Tensor& statistics) {
    return statistics.slice(1, num_channels, 2 * num_channels);
  };
  check_count(counts_of(all), input);
  if (input.is_cuda()) {
    // Ranks without rows send zeros. The kernel divides by the sum of the counts so far, so they come last, where a
    // count of 0 adds only rounding. Python removes them, for which the host waits.
    const auto is_empty = counts_of(all).lt(1);
    const auto rows = all.index_select(0, is_empty.to(at::kByte).argsort(/*stable=*/true, /*dim=*/0));
    auto counts = counts_of(rows).contiguous();
    const auto invstds = at::where(counts.lt(1).unsqueeze(1), at::ones_like(spreads_of(rows)), spreads_of(rows));
    // The kernel requires counts in the dtype of the running statistics.
    if (arguments.running_mean.defined()) counts = counts.to(arguments.running_mean.scalar_type());
    auto [mean, invstd] = at::batch_norm_gather_stats_with_counts(
        input, means_of(rows).contiguous(), invstds.contiguous(), arguments.running_mean, arguments.running_var,
        arguments.momentum, arguments.eps, counts);
    return {.mean = mean, .invstd = invstd, .counts = counts.to(at::kInt)};
  }
  // Chan's formula for merging sums of squared deviations, which unlike E[x^2] - E[x]^2 does not cancel. A rank without
  // rows has the weight 0.
  const auto means = means_of(all), spreads = spreads_of(all), counts = counts_of(all), count = counts.sum();
  const auto weights = counts.unsqueeze(1);
  const auto mean = (means * weights).sum(0) / count;
  const auto squares = (spreads + weights * (means - mean).square()).sum(0);
  const auto update = [&](at::Tensor running, const at::Tensor& value) {
    if (running.defined())
      running.mul_(1 - arguments.momentum).add_(value.to(running.scalar_type()), arguments.momentum);
  };
  update(arguments.running_mean, mean);
  // Running variances are unbiased, the one used to normalize is biased: as in BatchNorm.
  update(arguments.running_var, squares / (count - 1));
  const auto dtype = statistics_dtype(input.scalar_type());
  return {.mean = mean.to(dtype), .invstd = (squares / count + arguments.eps).rsqrt().to(dtype), .counts = counts};
}

at::Tensor normalized(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const GlobalStatistics& statistics, double eps) {
  // The kernels do not support inputs without rows.
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda()) return at::batch_norm_elemt(input, weight, bias, statistics.mean, statistics.invstd, eps);
  const auto scale = weight.defined() ? statistics.invstd * widened(weight) : statistics.invstd;
  auto result = (widened(input) - along_channels(statistics.mean, input)) * along_channels(scale, input);
  if (bias.defined()) result.add_(along_channels(widened(bias), input));
  return result.to(input.scalar_type());
}

LocalGradients local_gradients(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                               const GlobalStatistics& statistics) {
  if (input.numel() == 0) {
    // A rank without rows still takes part in the all-reduce.
    const auto zeros = at::zeros({input.size(1)}, statistics.mean.options());
    return {.sum_dy = zeros, .sum_dy_xmu = zeros, .weight = zeros, .bias = zeros};
  }
  if (input.is_cuda()) {
    auto [sum_dy, sum_dy_xmu, of_weight, of_bias] =
        at::batch_norm_backward_reduce(grad_output, input, statistics.mean, statistics.invstd, weight, /*input_g=*/true,
                                       weight.defined(), weight.defined());
    return {.sum_dy = sum_dy, .sum_dy_xmu = sum_dy_xmu, .weight = of_weight, .bias = of_bias};
  }
  const auto dy = widened(grad_output);
  const auto dims = other_dims(input);
  auto sum_dy = dy.sum(dims);
  auto sum_dy_xmu = (dy * (widened(input) - along_channels(statistics.mean, input))).sum(dims);
  return {.sum_dy = sum_dy, .sum_dy_xmu = sum_dy_xmu, .weight = sum_dy_xmu * statistics.invstd, .bias = sum_dy};
}

at::Tensor input_gradient(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                          const GlobalStatistics& statistics, const at::Tensor& sum_dy, const at::Tensor& sum_dy_xmu) {
  if (input.numel() == 0) return at::zeros_like(input);
  const auto wide_weight = weight.defined() ? weight.to(statistics.mean.scalar_type()) : weight;
  if (input.is_cuda()) {
    return at::batch_norm_backward_elemt(grad_output, input, statistics.mean, statistics.invstd, wide_weight, sum_dy,
                                         sum_dy_xmu, statistics.counts);
  }
  // The same formula as batch_norm_backward_elemt: dx = (dy - mean(dy) - (x - mean) * invstd^2 * mean(dy * (x - mean)))
  // * invstd * weight, with means over all ranks.
  const auto count = statistics.counts.sum();
  const auto centred = widened(input) - along_channels(statistics.mean, input);
  const auto of_mean = along_channels(sum_dy / count, input);
  const auto of_variance = along_channels(statistics.invstd.square() * sum_dy_xmu / count, input);
  const auto scale = weight.defined() ? statistics.invstd * wide_weight : statistics.invstd;
  return ((widened(grad_output) - of_mean - centred * of_variance) * along_channels(scale, input))
      .to(input.scalar_type());
}

}  // namespace accel
