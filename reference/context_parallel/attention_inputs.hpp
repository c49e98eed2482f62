#pragma once

#include "reference/context_parallel/context_attention.hpp"

/// What the functions of context_attention.hpp have in common. Thread rule: the rank's thread.
namespace accel::parallel {

/// Queries, keys and values (batch, heads, positions, width) of one function.
struct AttentionInputs {
  at::Tensor queries = {}, keys = {}, values = {};
};

/// Throws one ArgumentError, which begins with `function` and lists everything in which the tensors do not fit the
/// plan, the group or the options. `exchanges_heads`: each rank computes some of the heads.
void check_attention(const char* function, const AttentionInputs& inputs, const SequencePlan& plan, const Group& group,
                     const ContextAttentionOptions& options, bool exchanges_heads = false);

/// The key mask of the complete sequence, (batch, length); undefined if the options have none. Collective.
at::Tensor complete_key_mask(const ContextAttentionOptions& options, const SequencePlan& plan, const Group& group);

}  // namespace accel::parallel
