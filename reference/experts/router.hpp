#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reference/comm/group.hpp"

/// Chooses the experts of each token, and computes the losses that keep the choices balanced.
///
///     const auto routing = route(logits, {.top_k = 2});
///     loss = loss + 0.01 * routing_losses(logits, routing, mesh["dp_cp"]).balance;
///
/// Thread rule: functions on values of the rank's thread.
namespace accel::parallel {

struct RouterOptions {
  std::int64_t top_k = 1;
  bool normalize_gates = false;  ///< divides the gates of a token by their sum
};

struct Routing {
  at::Tensor choices = {};        ///< (tokens, top_k) int64, the most probable expert first
  at::Tensor gates = {};          ///< (tokens, top_k): the weights of the chosen experts' outputs
  at::Tensor probabilities = {};  ///< (tokens, experts)
};

/// Computes the softmax of `logits` (tokens, experts), in float64 if they are float64 and in float32 otherwise, and
/// chooses the `top_k` most probable experts. Of equally probable experts, those with lower indices are chosen.
[[nodiscard]] Routing route(const at::Tensor& logits, const RouterOptions& options);

struct RoutingLosses {
  /// num_experts * sum over experts of (share of all choices) * (mean probability): 1 if choices are balanced. Choices
  /// count before any is dropped. Source: Switch Transformers, arXiv 2101.03961, equation 4; for top_k > 1 as in
  /// megatron/core/transformer/moe/moe_utils.py, switch_load_balancing_loss_func.
  at::Tensor balance = {};
  /// The mean of the squared log-sum-exp of a token's logits. Source: ST-MoE, arXiv 2202.08906, equation 5.
  at::Tensor z = {};
};

/// Both are means over the tokens of all ranks of `group`, the data group "dp_cp", so every layout has the value of one
/// rank. Every rank adds them to its own loss; the mean of the ranks' gradients is then one rank's gradient. 0 without
/// tokens. One collective, and one in backward.
[[nodiscard]] RoutingLosses routing_losses(const at::Tensor& logits, const Routing& routing, const Group& group);

}  // namespace accel::parallel
