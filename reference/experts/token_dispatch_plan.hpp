#pragma once

#include <cstdint>
#include <optional>
#include <vector>

/// Which rows a mixture of experts sends to which rank, and in which order. Pure functions without tensors or
/// communication; token_dispatcher.hpp moves rows accordingly.
///
///     const auto plan = plan_dispatch({1, 0, 1}, {.num_experts = 2, .top_k = 1});
///     plan.choices;          // {1, 0, 2}: token 1 for expert 0, then tokens 0 and 2 for expert 1
///     plan.rows_per_expert;  // {1, 2}
///
/// Rank r of G ranks holds the experts [r * E / G, (r + 1) * E / G). Thread rule: values.
namespace accel::parallel {

struct DispatchOptions {
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;  ///< experts per token
  /// Limits the rows that an expert accepts from each rank; see expert_capacity. nullopt: dropless.
  std::optional<double> capacity_factor = {};
};

/// The rows that an expert accepts from a rank with `num_tokens` tokens: the ceiling of
/// num_tokens * top_k / num_experts * capacity_factor.
/// Source: megatron/core/transformer/moe/moe_utils.py, get_capacity.
[[nodiscard]] std::int64_t expert_capacity(std::int64_t num_tokens, const DispatchOptions& options);

/// What one rank sends.
struct TokenDispatchPlan {
  /// The choices that are kept, as token * top_k + choice, by expert and then by token.
  std::vector<std::int64_t> choices = {};
  std::vector<std::int64_t> rows_per_expert = {};  ///< of all experts
};
/// `experts`: the experts that the tokens chose, (tokens, top_k) in row-major order, a token's first choice first.
///
/// With a capacity, first choices are kept before second ones, and choices of equal position in the order of tokens;
/// those beyond an expert's capacity are dropped. Each rank counts its own tokens only, so which choices are dropped
/// depends on how the tokens are divided over ranks. Source: GShard, arXiv 2006.16668, algorithm 1. (Megatron-LM's
/// policy "position" ignores the position of a choice, and its default "probs" keeps the largest gates.)
/// Throws ArgumentError for an expert that does not exist.
[[nodiscard]] TokenDispatchPlan plan_dispatch(const std::vector<std::int64_t>& experts, const DispatchOptions& options);

/// What one rank receives. Rows arrive by source rank, and from each by expert.
struct ArrivalPlan {
  std::vector<std::int64_t> rows_per_rank = {};    ///< from each source rank
  std::vector<std::int64_t> rows_per_expert = {};  ///< of each expert of this rank
  /// The index among the arrived rows of each row in the order in which experts read them: by expert, then by source
  /// rank, then by token. One rank that has all tokens in the order of the ranks reads the same rows in this order.
  std::vector<std::int64_t> order = {};
};
/// `counts`: the rows from each source rank for each expert of this rank, (ranks, experts) in row-major order.
[[nodiscard]] ArrivalPlan plan_arrival(const std::vector<std::int64_t>& counts, std::int64_t num_ranks);

}  // namespace accel::parallel
