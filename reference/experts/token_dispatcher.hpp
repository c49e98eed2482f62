#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/experts/token_dispatch_plan.hpp"

/// Moves the rows of tokens to the ranks of their experts, and the results back: the executor of dispatch_plan.hpp.
///
///     const TokenDispatcher dispatcher(choices, {.num_experts = 8, .top_k = 2}, mesh["ep"]);
///     const auto rows = dispatcher.dispatch(values);
///     const auto results = experts->forward(rows, dispatcher.rows_per_expert());
///     const auto output = dispatcher.combine(results, gates);
///
/// The constructor, dispatch, combine and both gradients are collectives of the group. A rank without tokens, or whose
/// experts receive no row, calls them too, and its loss must depend on its output, which then has no rows.
/// Thread rule: the rank's thread.
/// Source: megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
namespace accel::parallel {

class TokenDispatcher {
 public:
  /// `choices`: (tokens, top_k) int64, as of route(). `group`: the ranks that divide the experts. Exchanges the numbers
  /// of rows, which waits for the device of `choices`.
  TokenDispatcher(const at::Tensor& choices, const DispatchOptions& options, Group group);

  /// (tokens, width) -> (rows, width): the rows of this rank's experts, by expert, then by source rank, then by token.
  [[nodiscard]] at::Tensor dispatch(const at::Tensor& values) const;
  /// The number of rows of each expert of this rank; may be 0.
  [[nodiscard]] const std::vector<std::int64_t>& rows_per_expert() const { return arrival_.rows_per_expert; }
  /// Sends results back and adds those of each token: (rows, width) in the order of dispatch, and `gates` (tokens,
  /// top_k), -> (tokens, width). A dropped choice adds 0, and its gate's gradient is 0.
  [[nodiscard]] at::Tensor combine(const at::Tensor& results, const at::Tensor& gates) const;

 private:
  Group group_;
  std::int64_t num_tokens_, top_k_;
  std::vector<std::int64_t> sent_per_rank_;
  ArrivalPlan arrival_;
  at::Tensor sent_;   // TokenDispatchPlan::choices
  at::Tensor order_;  // ArrivalPlan::order
};

/// Sends `sent[r]` rows to rank r, in rank order, and returns the `received[r]` rows of each rank r. Its gradient sends
/// the rows back. Collective, also without rows.
[[nodiscard]] at::Tensor exchanged_rows(const at::Tensor& rows, const std::vector<std::int64_t>& sent,
                                        const std::vector<std::int64_t>& received, const Group& group);

}  // namespace accel::parallel
