#pragma once

#include <functional>

#include "reference/state/rank_context.hpp"
#include "sim/backend/operator_clock.hpp"
#include "sim/backend/rank_trace.hpp"

namespace accel::sim {

struct FirstRankOptions {
  int num_ranks = 1;
  double cpu_factor = 0;                       ///< seconds of compute per second of processor time
  OperatorSeconds operator_seconds = nullptr;  ///< set: seconds per operator, replaces cpu_factor
  /// Called for each prepared model, e.g. to reject it.
  std::function<void(const torch::nn::Module&)> on_model = nullptr;
  /// Ends the body at the backward pass after so many optimizer steps; 0: it runs to its end.
  int max_updates = 0;
};

/// Runs `body` as rank 0 of `num_ranks` ranks, without the other ranks: see FakeBackend. It costs what one rank costs,
/// for any number of ranks. The values that it computes have no meaning.
///
///     const auto trace = sim::run_first_rank({.num_ranks = 64, .cpu_factor = 1}, [](RankContext& rank) { ... });
///
/// The trace stands for all ranks of a program whose ranks make the same calls. Runs on a thread of its own, whose
/// profiler it takes the place of: in the body none can record. Rethrows the exception of `body`.
RankTrace run_first_rank(const FirstRankOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace accel::sim
