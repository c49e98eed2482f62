#include "reference/experts/router.hpp"

#include <ATen/ATen.h>

#include "reference/tensor_parallel/operators.hpp"

namespace accel::parallel {
namespace {

at::ScalarType precision_of(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The sum over the ranks. The loss of every rank depends on it, so its gradient is the sum of the ranks' gradients.
at::Tensor sum_over_ranks(const at::Tensor& values, const Group& group) {
  if (group.size() == 1) return values;
  const auto sum = [group](const at::Tensor& own) { return all_reduced(own, group); };
  return with_gradient(values, sum, sum);
}

}  // namespace

// topk does not document which of equal values it returns; a stable sort does.
Routing route(const at::Tensor& logits, const RouterOptions& options) {
  const auto probabilities = at::softmax(logits, -1, precision_of(logits));
  const auto choices = std::get<1>(at::sort(probabilities.detach(), /*stable=*/true, /*dim=*/-1, /*descending=*/true))
                           .narrow(-1, 0, options.top_k)
                           .contiguous();
  auto gates = probabilities.gather(-1, choices);
  if (options.normalize_gates) gates = gates / gates.sum(-1, /*keepdim=*/true);
  return {.choices = choices, .gates = gates, .probabilities = probabilities};
}

RoutingLosses routing_losses(const at::Tensor& logits, const Routing& routing, const Group& group) {
  const auto& probabilities = routing.probabilities;
  const auto num_experts = probabilities.size(1), top_k = routing.choices.size(1);
  const auto counts = at::bincount(routing.choices.flatten(), {}, num_experts).to(probabilities.scalar_type());
  const auto squares = at::logsumexp(logits.to(probabilities.scalar_type()), -1).square().sum();
  const auto num_tokens = at::scalar_tensor(probabilities.size(0), probabilities.options());
  const auto sums = sum_over_ranks(at::cat({probabilities.sum(0), counts, at::stack({squares, num_tokens})}), group);
  const auto total = sums[2 * num_experts + 1].detach().clamp_min(1);
  const auto shares = sums.narrow(0, num_experts, num_experts).detach() / (total * top_k);
  const auto means = sums.narrow(0, 0, num_experts) / total;
  return {.balance = (shares * means).sum() * num_experts, .z = sums[2 * num_experts] / total};
}

}  // namespace accel::parallel
