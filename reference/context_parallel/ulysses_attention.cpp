#include <ATen/ATen.h>

#include <optional>

#include "reference/context_parallel/attention_inputs.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::parallel {
namespace {

// Sends part r of dimension `split_dim` to rank r and concatenates what arrives along `joined_dim`.
at::Tensor exchanged_parts(const at::Tensor& values, std::int64_t split_dim, std::int64_t joined_dim,
                           const Group& group) {
  const auto outgoing = at::stack(values.chunk(group.size(), split_dim));
  auto incoming = at::empty_like(outgoing);
  group.all_to_all(incoming, outgoing).wait();
  return at::cat(incoming.unbind(0), joined_dim);
}

constexpr std::int64_t kHeads = 1, kPositions = 2;

// (batch, heads, local length, width) -> (batch, heads / size, length, width), in the order of positions.
at::Tensor by_heads(const at::Tensor& values, const SequencePlan& plan, const Group& group) {
  const auto exchanged = with_gradient(
      values, [&](const at::Tensor& own) { return exchanged_parts(own, kHeads, kPositions, group); },
      [group](const at::Tensor& gradient) { return exchanged_parts(gradient, kPositions, kHeads, group); });
  return exchanged.index_select(kPositions, at::tensor(plan.gathered_indices(), at::kLong).to(values.device()));
}

// The inverse.
at::Tensor by_positions(const at::Tensor& values, const SequencePlan& plan, const Group& group) {
  const auto gathered = at::tensor(plan.gathered_positions(), at::kLong).to(values.device());
  return with_gradient(
      values.index_select(kPositions, gathered),
      [&](const at::Tensor& all) { return exchanged_parts(all, kPositions, kHeads, group); },
      [group](const at::Tensor& gradient) { return exchanged_parts(gradient, kHeads, kPositions, group); });
}

// is_causal and a mask exclude each other in scaled_dot_product_attention.
std::optional<at::Tensor> mask_of(const at::Tensor& key_mask, bool is_causal) {
  if (!key_mask.defined()) return std::nullopt;
  const auto visible = key_mask.unsqueeze(1).unsqueeze(1);  // (batch, head, query, key)
  const auto length = key_mask.size(1);
  return is_causal ? visible.logical_and(at::ones({length, length}, key_mask.options()).tril()) : visible;
}

}  // namespace

at::Tensor ulysses_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                             const SequencePlan& plan, const Group& group, const ContextAttentionOptions& options) {
  check_attention("ulysses_attention", {queries, keys, values}, plan, group, options, /*exchanges_heads=*/true);
  const auto mask = mask_of(complete_key_mask(options, plan, group), options.is_causal);
  const auto seen = at::scaled_dot_product_attention(
      by_heads(queries, plan, group), by_heads(keys, plan, group), by_heads(values, plan, group), mask,
      /*dropout_p=*/0.0, /*is_causal=*/options.is_causal && !mask, options.scale, options.enable_gqa);
  return by_positions(seen, plan, group);
}

}  // namespace accel::parallel
