#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/programs/experiments/epoch_counts.hpp"

/// `accel data-check`: what a loader's configuration does to an epoch over a range of numbers of ranks, and what to
/// change.
namespace accel::programs {

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
