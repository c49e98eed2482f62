#include "sim/programs/experiments/epoch_counts.hpp"

#include <algorithm>

#include "reference/data/dispatched_batches.hpp"
#include "reference/data/samplers/shard_plan.hpp"
#include "sim/programs/experiments/data_plan.hpp"

namespace accel::programs {
namespace {

EpochCounts count_dispatched(const PlanRequest& request, std::int64_t samples_per_step) {
  const auto num_rows = request.drop_last ? request.length / samples_per_step * samples_per_step : request.length;
  EpochCounts counts{.samples_per_step = samples_per_step,
                     .ranks_with_most_steps = request.ranks,
                     .dropped = request.length - num_rows};
  if (num_rows == 0) {
    counts.ranks_without_batch = request.ranks;
    return counts;
  }
  counts.steps_min = counts.steps_max = (num_rows - 1) / samples_per_step + 1;
  const auto last = plan_dispatch({.num_rows = (num_rows - 1) % samples_per_step + 1,
                                   .num_ranks = request.ranks,
                                   .is_last = true,
                                   .full_rows = request.is_elastic() ? samples_per_step : 0});
  counts.duplicated = last.num_padding;
  counts.shortest_batch = counts.longest_batch = last.rows_per_rank;
  return counts;
}

EpochCounts count_sharded(const PlanRequest& request, const ShardPlan& plan) {
  const auto total = plan.total_batch_size(), per_rank = total / request.ranks;
  EpochCounts counts{
      .samples_per_step = total, .steps_min = plan.num_batches(request.ranks - 1), .steps_max = plan.num_batches(0)};
  for (int rank = 0; rank < request.ranks; ++rank) {
    const auto batches = plan.num_batches(rank);
    if (batches == counts.steps_max) ++counts.ranks_with_most_steps;
    if (batches == 0) ++counts.ranks_without_batch;
  }
  if (request.drop_last || plan.fills_up()) {
    const auto issued = counts.steps_max * total;
    counts.duplicated = std::max<std::int64_t>(issued - request.length, 0);
    counts.dropped = std::max<std::int64_t>(request.length - issued, 0);
  }
  if (counts.steps_max > 0) {
    const auto of_last = request.length - (counts.steps_max - 1) * total;  // samples that the last step finds
    const auto behind_others = of_last - (counts.ranks_with_most_steps - 1) * per_rank;
    counts.longest_batch = counts.duplicated > 0 ? per_rank : std::min(per_rank, of_last);
    counts.shortest_batch = counts.duplicated > 0 ? per_rank : std::min(per_rank, behind_others);
  }
  return counts;
}

}  // namespace

EpochCounts count_epoch(const PlanRequest& request) {
  const auto plan = shard_plan_of(request);
  return request.dispatches() ? count_dispatched(request, plan.total_batch_size()) : count_sharded(request, plan);
}

std::optional<std::int64_t> even_batch_size(const PlanRequest& request) {
  if (request.length == 0 || request.length % request.ranks != 0) return std::nullopt;
  const auto of_rank = request.length / request.ranks;
  const auto unit = request.split_batches ? request.ranks : 1;
  const auto wished = std::max<std::int64_t>(request.batch_size / unit, 1);
  constexpr std::int64_t kFarthest = 4096;
  for (std::int64_t distance = 0; distance <= std::min(wished, kFarthest); ++distance) {
    for (const auto size : {wished - distance, wished + distance}) {
      if (2 * size >= wished && size > 0 && of_rank % size == 0) return size * unit;
    }
  }
  return std::nullopt;
}

}  // namespace accel::programs
