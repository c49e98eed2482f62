#include "reference/modules/linear_cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/precision/autocast.hpp"

namespace accel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kLogitsPerChunk = 1 << 26;

// Mean and sum of losses as LibTorch numbers them.
constexpr std::int64_t kSum = 2;

struct Rows {
  at::Tensor hidden, weight, targets;  // (rows, width), (classes, width), (rows)
};

struct Sums {
  at::Tensor loss, of_hidden, of_weight;  // gradients: undefined if they are not needed
};

struct Needed {
  bool of_hidden = false, of_weight = false;
};

// Each row's loss is divided by `num_counted` before the sum over chunks, so that one chunk gives the bits of a mean.
Sums sums_over_chunks(const Rows& rows, const at::Tensor& num_counted, std::int64_t ignore_index,
                      std::int64_t chunk_rows, Needed needed) {
  const auto dtype = rows.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto one = at::ones({}, rows.hidden.options().dtype(dtype));
  const auto total_weight = at::ones({}, one.options());  // read by the kernel for a mean only
  Sums sums;
  std::vector<at::Tensor> of_hidden;
  for (std::int64_t first = 0; first < rows.hidden.size(0); first += chunk_rows) {
    const auto count = std::min(chunk_rows, rows.hidden.size(0) - first);
    const auto hidden = rows.hidden.narrow(0, first, count);
    const auto targets = rows.targets.narrow(0, first, count);
    auto log_probabilities = at::log_softmax(at::linear(hidden, rows.weight), 1, dtype);
    const auto loss = at::nll_loss(log_probabilities, targets, {}, kSum, ignore_index) / num_counted;
    sums.loss = sums.loss.defined() ? sums.loss + loss : loss;
    if (!needed.of_hidden && !needed.of_weight) continue;
    auto of_log =
        at::nll_loss_backward((one / num_counted), log_probabilities, targets, {}, kSum, ignore_index, total_weight);
    auto of_logits = at::_log_softmax_backward_data(of_log, log_probabilities, 1, dtype).to(rows.hidden.scalar_type());
    of_log.reset();
    log_probabilities.reset();
    if (needed.of_hidden) of_hidden.push_back(at::mm(of_logits, rows.weight));
    if (!needed.of_weight) continue;
    // In float32 over chunks: in a lower precision later chunks would be rounded away.
    const auto of_weight = at::mm(of_logits.t(), hidden).to(dtype);
    if (sums.of_weight.defined())
      sums.of_weight.add_(of_weight);
    else
      sums.of_weight = of_weight;
  }
  if (needed.of_hidden) sums.of_hidden = of_hidden.size() == 1 ? of_hidden.front() : at::cat(of_hidden);
  return sums;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, const LinearCrossEntropyOptions& options, Needed needed) {
    const auto device = hidden.device().type();
    const bool autocasts = at::autocast::is_autocast_enabled(device);
    const auto dtype = autocasts ? at::autocast::get_autocast_dtype(device) : hidden.scalar_type();
    const Autocast off({.device = device, .dtype = dtype, .enabled = false});
    const auto width = hidden.size(-1);
    const Rows rows{
        .hidden = hidden.reshape({-1, width}).to(dtype), .weight = weight.to(dtype), .targets = targets.reshape({-1})};
    const auto of_losses = hidden.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
    const auto num_counted = options.reduction == "mean"
                                 ? rows.targets.ne(options.ignore_index).sum().to(of_losses.dtype())
                                 : at::ones({}, of_losses);
    const auto chunk_rows = options.chunk_rows.value_or(std::max<std::int64_t>(1, kLogitsPerChunk / weight.size(0)));
    const auto sums = sums_over_chunks(rows, num_counted, options.ignore_index, chunk_rows, needed);
    context->save_for_backward(
        {needed.of_hidden ? sums.of_hidden.to(hidden.scalar_type()).view_as(hidden) : at::Tensor(),
         needed.of_weight ? sums.of_weight.to(weight.scalar_type()) : at::Tensor()});
    return sums.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    check_state(!c10::GradMode::is_enabled(),
                "linear_cross_entropy: backward with create_graph is unsupported; use at::cross_entropy_loss of "
                "at::linear");
    const auto saved = context->get_saved_variables();
    const auto scaled = [&](const at::Tensor& gradient) {
      // In float32, since the factor may not be a number of the gradient's dtype.
      return gradient.defined()
                 ? gradient.to(grad_outputs[0].scalar_type()).mul_(grad_outputs[0]).to(gradient.scalar_type())
                 : gradient;
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  check_argument(
      hidden.dim() >= 1 && weight.dim() == 2 && hidden.size(-1) == weight.size(1) &&
          hidden.sizes().slice(0, hidden.dim() - 1) == targets.sizes() && hidden.numel() > 0 && weight.size(0) > 0,
      "linear_cross_entropy: hidden [{}], weight [{}], targets [{}]; expected [..., width], [classes, width] "
      "and [...], with at least one row",
      fmt::join(hidden.sizes(), ", "), fmt::join(weight.sizes(), ", "), fmt::join(targets.sizes(), ", "));
  const auto device = hidden.device().type();
  const bool is_float16 = hidden.scalar_type() == at::kHalf || (at::autocast::is_autocast_enabled(device) &&
                                                                at::autocast::get_autocast_dtype(device) == at::kHalf);
  check_argument(!is_float16,
                 "linear_cross_entropy: float16 is unsupported: gradients are computed before the loss is scaled, and "
                 "underflow; use bfloat16 or at::cross_entropy_loss");
  check_argument(options.reduction == "mean" || options.reduction == "sum",
                 "linear_cross_entropy: reduction: expected 'mean' or 'sum', got '{}'", options.reduction);
  check_argument(options.chunk_rows.value_or(1) >= 1, "linear_cross_entropy: chunk_rows: expected 1 or more, got {}",
                 options.chunk_rows.value_or(1));
  const bool records = c10::GradMode::is_enabled();
  return LinearCrossEntropy::apply(
      hidden, weight, targets, options,
      Needed{.of_hidden = records && hidden.requires_grad(), .of_weight = records && weight.requires_grad()});
}

}  // namespace accel
