#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

/// `accel data-check`: reports which samples a loader's configuration duplicates or drops, for a range of numbers of
/// ranks, and what to change.
namespace accel::programs {

// Counts of an epoch's samples, computed from the shard plan: no sample is listed and no loader runs, so that 10^9
// samples on 4,096 ranks take no time.

struct EpochCounts {
  std::int64_t samples_per_step = 0;  ///< in a full step, over all ranks
  std::int64_t steps_min = 0, steps_max = 0;
  int ranks_with_most_steps = 0;  ///< ranks 0 up to this one have steps_max, the others steps_min
  int ranks_without_batch = 0;
  std::int64_t duplicated = 0;      ///< repeated reads of samples
  std::int64_t dropped = 0;         ///< samples that no rank reads
  std::int64_t shortest_batch = 0;  ///< in the last step, over the ranks that have it
  std::int64_t longest_batch = 0;   ///< likewise

  [[nodiscard]] bool has_uneven_steps() const { return steps_min < steps_max; }
};

/// Counts the request's epoch, ignoring skip_batches. Throws ArgumentError if its loader cannot be sharded.
EpochCounts count_epoch(const PlanRequest& request);

/// Returns the batch size nearest to the request's that fills every step. Returns nothing if there is none between half
/// and twice the requested size, or none within 4,096 of it.
std::optional<std::int64_t> even_batch_size(const PlanRequest& request);

struct Finding {
  std::string kind;  ///< error, no_batch, duplicated, dropped, uneven_steps, short_batch
  std::string text;  ///< what happens, and what to change
};

/// The result for one number of ranks.
struct RanksCheck {
  int ranks = 1;
  std::optional<EpochCounts> counts;  ///< empty if the configuration is an error
  std::vector<Finding> findings;
};

struct LoaderCheck {
  std::string name;
  PlanRequest request;  ///< its number of ranks is not used
  std::vector<RanksCheck> of_ranks;
};

/// Checks a loader for each number of ranks. Throws ConfigError if the loader is invalid for every number of ranks.
LoaderCheck check_loader(const std::string& name, const PlanRequest& request, const std::vector<int>& numbers_of_ranks);

[[nodiscard]] bool has_findings(const std::vector<LoaderCheck>& checks);

}  // namespace accel::programs
