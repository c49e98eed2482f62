#pragma once

#include <cstdint>
#include <optional>

#include "sim/programs/experiments/plan_request.hpp"

/// What becomes of an epoch's samples, counted from the shard plan: no sample is listed and no loader runs, so that
/// 10^9 samples on 4,096 ranks take no time.
namespace accel::programs {

struct EpochCounts {
  std::int64_t samples_per_step = 0;  ///< of a full step, over all ranks
  std::int64_t steps_min = 0, steps_max = 0;
  int ranks_with_most_steps = 0;  ///< ranks 0 up to this one have steps_max, the others steps_min
  int ranks_without_batch = 0;
  std::int64_t duplicated = 0;      ///< further readings of samples that were read
  std::int64_t dropped = 0;         ///< samples that no rank reads
  std::int64_t shortest_batch = 0;  ///< of the last step, over the ranks that have it
  std::int64_t longest_batch = 0;   ///< the same

  [[nodiscard]] bool has_uneven_steps() const { return steps_min < steps_max; }
};

/// Of a request's epoch without skipped batches. Throws ArgumentError where its loader cannot be sharded.
EpochCounts count_epoch(const PlanRequest& request);

/// A batch size near the request's that fills every step; nothing if there is none from half of it to twice as
/// much, or none within 4,096 of it.
std::optional<std::int64_t> even_batch_size(const PlanRequest& request);

}  // namespace accel::programs
