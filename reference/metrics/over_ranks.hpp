#pragma once

#include <concepts>
#include <cstddef>

#include "reference/core/errors.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tree/value.hpp"

namespace accel::metrics {

/// What all metrics have in common. `update` takes the samples of a batch, `merge` those that another metric with the
/// same options has seen, and `compute` returns the result over all of them. Objects with state dicts can be registered
/// for checkpointing.
template <typename M>
concept Metric = std::copyable<M> && requires(M metric, const M& other, const Value& state) {
  metric.merge(other);
  metric.reset();
  { other.compute() };
  { other.state_dict() } -> std::same_as<Value>;
  metric.load_state_dict(state);
};

/// Returns the metric over the samples of all ranks, on every rank. Each rank passes a metric with the same options,
/// perhaps without samples. Collective.
///
///     accel::metrics::Accuracy accuracy({.num_classes = 10});
///     for (auto& batch : batches) {
///       const auto [scores, targets] = accel::metrics::own_rows(accelerator, predict(batch));
///       accuracy.update(scores, targets);
///     }
///     const double value = accel::metrics::over_ranks(accuracy).compute();
template <Metric M>
[[nodiscard]] M over_ranks(const M& metric, RankContext& context = current_rank()) {
  auto all = metric;
  all.reset();
  for (const auto& state : gather_object(context, std::vector<Value>{metric.state_dict()})) {
    auto of_rank = metric;
    of_rank.load_state_dict(state);
    all.merge(of_rank);
  }
  return all;
}

}  // namespace accel::metrics
