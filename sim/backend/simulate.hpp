#pragma once

#include <functional>

#include "reference/state/rank_context.hpp"
#include "sim/ranks/rehearse_ranks.hpp"

namespace accel::sim {

/// Runs `body` once per simulated rank, each on its own thread with its own context: group, generator, autocast cache.
/// Returns when all ranks have ended. A rank that never returns blocks it forever: nothing ends a thread from outside.
///
///     accel::sim::simulate({.num_ranks = 64}, [](accel::RankContext& rank) { ... });
///
/// std::exit in `body` ends its rank and fails the run unless the code is 0. Prints findings to standard error. Throws
/// RunError (sim/engine/run_error.hpp) with the errors of all ranks, ConfigError for an invalid number of ranks.
void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

/// Like `simulate`, but returns failures in its report instead of throwing.
SimulationReport rehearse(const SimulationOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace accel::sim
