#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/context_parallel/sequence_plan.hpp"

/// Tensors that are divided along a sequence, by a SequencePlan.
///
///     const SequencePlan plan({.length = tokens.size(1), .num_ranks = cp.size(), .order = SequenceOrder::kZigzag});
///     const auto own_labels = shard_sequence(shift_labels(tokens), 1, plan, cp.rank());
///     const auto own_tokens = shard_sequence(tokens, 1, plan, cp.rank());
///     auto hidden = embedding(own_tokens) + position_embedding(position_ids(plan, cp.rank()));
///
/// Each rank computes the loss of its own positions with token_mean of token_mean.hpp. Gradients are those of the sum
/// of all ranks' losses, which DistributedDataParallel divides by the number of ranks.
/// Thread rule: the rank's thread.
namespace accel::parallel {

/// The rank's positions in the complete sequence: (local_length) int64, for rotary and learned position embeddings.
at::Tensor position_ids(const SequencePlan& plan, int rank, at::Device device = at::kCPU);

/// The rank's part of a complete tensor along dimension `dim`, in new memory. A negative dimension counts from the end.
/// Throws ArgumentError if the dimension does not have plan.length() elements.
at::Tensor shard_sequence(const at::Tensor& values, std::int64_t dim, const SequencePlan& plan, int rank);

/// The complete tensor, on every rank, from the parts of all ranks. Collective, as is its backward, a reduce-scatter.
/// Throws ArgumentError if the group or the part does not fit the plan.
at::Tensor unshard_sequence(const at::Tensor& part, std::int64_t dim, const SequencePlan& plan, const Group& group);

/// The labels of a causal language model for complete sequences of tokens (..., length): the label of a position is the
/// next token, or `ignore_index` at the end. Shift before sharding, because the next token of a chunk's last position
/// may be on another rank. Source: the batch key "shift_labels" of transformers.
at::Tensor shift_labels(const at::Tensor& tokens, std::int64_t ignore_index = -100);

/// Describes what is wrong if the group has another size than the plan, or a part of `length` positions is not one of
/// the plan's.
std::vector<std::string> problems_of_part(std::int64_t length, const SequencePlan& plan, const Group& group);

}  // namespace accel::parallel
