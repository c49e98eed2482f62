#pragma once

#include <vector>

#include "sim/backend/rank_trace.hpp"
#include "sim/network/network.hpp"

/// The time of an optimizer step of ranks that all do what one rank did.
///
///     auto network = sim::Network::load("configs/sim/networks/infiniband_400g.yaml");
///     const auto step = time_of_step(sim::run_first_rank(options, body), network);
///
/// Thread rule: one thread at a time per network.
namespace accel::programs {

struct TracedStep {
  double seconds = 0;          ///< from the last but one update to the last, of the slowest rank
  double compute_seconds = 0;  ///< of a rank; the rest of `seconds` is exposed communication
};

/// Every rank's calls go to the group that is to it what the trace's group is to rank 0, so the network prices groups
/// by where their ranks are. All ranks begin the step at the same time. Resets the network. Throws ArgumentError for
/// fewer than two updates, ConfigError if the network cannot hold the ranks.
TracedStep time_of_step(const sim::RankTrace& trace, sim::Network& network);

/// The groups of a mesh that are like the group `ranks` of rank 0, which is the first: all translations of it. Throws
/// ArgumentError if they do not divide `num_ranks` ranks.
std::vector<std::vector<int>> groups_like(const std::vector<int>& ranks, int num_ranks);

}  // namespace accel::programs
