#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace accel {

struct LinearCrossEntropyOptions {
  std::int64_t ignore_index = -100;  ///< targets that do not count
  std::string reduction = "mean";    ///< over the targets that count: "mean" or "sum"
  /// Rows whose logits exist at a time. Default: as many as have 2^26 logits.
  std::optional<std::int64_t> chunk_rows = {};
};

/// The cross entropy of the logits `linear(hidden, weight)`, for models with a large vocabulary: computes loss and
/// gradients chunk by chunk, so that neither all logits nor their gradients are in memory at once.
///
///     auto hidden = model(tokens);  // without the output layer
///     const auto autocast = accelerator.autocast();
///     auto loss = accel::linear_cross_entropy(hidden, head->weight, targets);
///
/// Shapes: `hidden` (..., width), `weight` (classes, width), `targets` (...) int64; the loss is a float32 (or float64)
/// scalar. Under autocast the products are computed in its dtype, and the loss in float32. With one chunk, the loss and
/// the gradients of a loss that is multiplied by a power of two have the bits of
/// at::cross_entropy_loss(at::linear(hidden, weight), targets). Gradients are computed together with the loss, so
/// backward with create_graph throws StateError. Throws ArgumentError for float16 and for shapes that do not fit.
/// Source: the fused linear cross entropy of Liger Kernel.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace accel
