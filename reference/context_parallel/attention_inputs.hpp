#pragma once

#include "reference/context_parallel/context_attention.hpp"

/// What the functions of context_attention.hpp have in common. Thread rule: the rank's thread.
namespace accel::parallel {

/// Queries, keys and values (batch, heads, positions, width) of one function.
struct AttentionInputs {
  at::Tensor queries = {}, keys = {}, values = {};
};

/// Throws ArgumentError, which begins with `function`, if the tensors do not fit the plan, the group or the options.
void check_attention(const char* function, const AttentionInputs& inputs, const SequencePlan& plan, const Group& group,
                     const ContextAttentionOptions& options);

/// The key mask of the complete sequence, (batch, length); undefined if the options have none. Collective.
at::Tensor complete_key_mask(const ContextAttentionOptions& options, const SequencePlan& plan, const Group& group);

}  // namespace accel::parallel
