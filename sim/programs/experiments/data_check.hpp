#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

/// `accel data-check`: what a loader's configuration does to an epoch over a range of numbers of ranks, and what to
/// change.
namespace accel::programs {

// What becomes of an epoch's samples, counted from the shard plan: no sample is listed and no loader runs, so that
// 10^9 samples on 4,096 ranks take no time.

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

struct Finding {
  std::string kind;  ///< error, no_batch, duplicated, dropped, uneven_steps, short_batch
  std::string text;  ///< what happens, and what to change
};

/// One number of ranks.
struct RanksCheck {
  int ranks = 1;
  std::optional<EpochCounts> counts;  ///< nothing where the configuration is an error
  std::vector<Finding> findings;
};

struct LoaderCheck {
  std::string name;
  PlanRequest request;  ///< its number of ranks is not used
  std::vector<RanksCheck> of_ranks;
};

/// Throws ConfigError for a loader that no number of ranks makes possible.
LoaderCheck check_loader(const std::string& name, const PlanRequest& request, const std::vector<int>& numbers_of_ranks);

[[nodiscard]] bool has_findings(const std::vector<LoaderCheck>& checks);

}  // namespace accel::programs
