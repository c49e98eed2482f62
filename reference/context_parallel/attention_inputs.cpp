#include "reference/context_parallel/attention_inputs.hpp"

#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include <ATen/ATen.h>

namespace accel::parallel {

void check_attention(const char* function, const AttentionInputs& inputs, const SequencePlan& plan, const Group& group,
                     const ContextAttentionOptions& options, bool exchanges_heads) {
  const auto& [queries, keys, values] = inputs;
  check_argument(queries.dim() == 4 && keys.dim() == 4 && keys.sizes() == values.sizes() &&
                     queries.size(0) == keys.size(0) && queries.size(2) == keys.size(2) &&
                     queries.size(3) == keys.size(3),
                 "{}: queries have shape {}, keys {} and values {}; expected (batch, heads, positions, width), equal "
                 "but for the heads of the queries",
                 function, c10::str(queries.sizes()), c10::str(keys.sizes()), c10::str(values.sizes()));
  auto problems = problems_of_part(queries.size(2), plan, group);
  note_unless(queries.is_floating_point() && queries.scalar_type() == keys.scalar_type() &&
                  queries.scalar_type() == values.scalar_type(),
              problems, "queries are {}, keys {} and values {}; expected one floating-point type",
              c10::toString(queries.scalar_type()), c10::toString(keys.scalar_type()),
              c10::toString(values.scalar_type()));
  const auto heads = queries.size(1), key_heads = keys.size(1);
  note_unless(heads == key_heads || (options.enable_gqa && key_heads > 0 && heads % key_heads == 0), problems,
              "{} heads and {} key-value heads; expected equal numbers, or with enable_gqa a multiple", heads,
              key_heads);
  note_unless(
      !exchanges_heads || (heads % group.size() == 0 && key_heads % group.size() == 0), problems,
      "{} heads and {} key-value heads do not divide over {} ranks; expected multiples of {}; use ring_attention or "
      "all_gather_attention",
      heads, key_heads, group.size(), group.size());
  const auto& mask = options.key_mask;
  note_unless(!mask.defined() || (mask.scalar_type() == at::kBool && mask.dim() == 2 && mask.size(0) == keys.size(0) &&
                                  mask.size(1) == keys.size(2)),
              problems, "the key mask is {} of shape {}; expected bool of shape ({}, {}), one element per key",
              mask.defined() ? c10::toString(mask.scalar_type()) : "", mask.defined() ? c10::str(mask.sizes()) : "",
              keys.size(0), keys.size(2));
  check_argument(problems.empty(), "{}: {}", function, listed(problems, "; "));
}

// As bytes: c10d's backends need not support bool.
at::Tensor complete_key_mask(const ContextAttentionOptions& options, const SequencePlan& plan, const Group& group) {
  if (!options.key_mask.defined()) return {};
  return unshard_sequence(options.key_mask.to(at::kByte), 1, plan, group).to(at::kBool);
}

}  // namespace accel::parallel
