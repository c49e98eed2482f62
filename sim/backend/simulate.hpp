#pragma once

#include <chrono>
#include <functional>

#include "reference/state/rank_context.hpp"

namespace accel::sim {

struct SimulationOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of a collective that a running rank never joins
};

/// Runs `body` once per simulated rank, each on a thread of its own, with its own context: group, generator, autocast
/// cache. Returns when all ranks have ended.
///
///     accel::sim::simulate({.num_ranks = 64}, [](accel::RankContext& rank) { ... });
///
/// Throws RunError (sim/engine/diagnosis.hpp) with the errors of all ranks, ConfigError for an impossible number of ranks.
void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace accel::sim
