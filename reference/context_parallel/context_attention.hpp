#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "reference/comm/group.hpp"
#include "reference/context_parallel/sequence_plan.hpp"

/// Attention over a sequence that is divided over the ranks of a group.
///
///     const auto plan = SequencePlan({.length = 8192, .num_ranks = cp.size(), .order = SequenceOrder::kZigzag});
///     const auto seen = ring_attention(queries, keys, values, plan, cp, {.is_causal = true});
///
/// | function | communication |
/// |---|---|
/// | all_gather_attention | all-gather of keys and values, reduce-scatter of their gradients |
/// | ring_attention | keys and values, and in backward their gradients, are sent from rank to rank |
/// | ulysses_attention | all-to-all before and after, so that each rank computes some heads |
///
/// On the CPU, results equal those of the same function on one rank: ulysses_attention in every bit if the width is a
/// multiple of 4; the outputs and the gradients of queries of all_gather_attention in every bit; the rest within
/// rounding.
///
/// `queries` (batch, heads, local length, width) and `keys` and `values` (batch, key-value heads, local length, width)
/// are this rank's positions by the plan; so is the result, which has the shape of `queries`. Dtype: one floating type.
/// Queries see keys by their positions in the complete sequence. Every rank of the group calls the same function, and
/// runs its backward. Gradients are those of the sum of all ranks' losses. In a group of one rank nothing is sent.
/// Unsupported: dropout, masks of pairs of positions, attention between sequences of different lengths, second
/// derivatives. Throws ArgumentError for sizes that do not fit, before any collective. Thread rule: the rank's thread.
namespace accel::parallel {

/// Arguments of torch.nn.functional.scaled_dot_product_attention.
struct ContextAttentionOptions {
  bool is_causal = false;
  std::optional<double> scale = {};  ///< of the scores; by default 1 / sqrt(width)
  bool enable_gqa = false;           ///< permits fewer key-value heads, each of which serves several query heads
  /// This rank's keys that may be seen, such as those of tokens that are not padding: bool, (batch, local length).
  /// Undefined: all. A query that sees no key has output 0.
  at::Tensor key_mask = {};
};

/// Every rank holds all keys and values during the layer. float16 and bfloat16 are computed in float32 on the CPU; the
/// gradients of keys and values are summed over the ranks in their own dtype.
/// Source: github.com/NVIDIA/TransformerEngine, AttnFuncWithCPAndKVAllGather.
at::Tensor all_gather_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                const SequencePlan& plan, const Group& group,
                                const ContextAttentionOptions& options = {});

/// A rank holds the keys and values of two ranks at a time, and the scores between two chunks. Under a causal mask the
/// ranks do equal work if the plan's order is kZigzag. float16 and bfloat16 are computed in float32.
/// Source: arXiv 2310.01889; torch/distributed/tensor/experimental/_context_parallel/_attention.py.
at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const SequencePlan& plan, const Group& group, const ContextAttentionOptions& options = {});

/// Computes at::scaled_dot_product_attention on the complete sequence and a part of the heads. The numbers of heads and
/// of key-value heads must be multiples of the group's size. Source: arXiv 2309.14509.
at::Tensor ulysses_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                             const SequencePlan& plan, const Group& group, const ContextAttentionOptions& options = {});

}  // namespace accel::parallel
