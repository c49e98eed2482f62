#pragma once

#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "sim/programs/equivalence/equivalence_case.hpp"

namespace accel::programs {

/// Everything that one rank observes of a case, in order, one line each: batches, end flags and remainders, results of
/// operations, states of generators, losses, parameters. The last line is the error, if the case ends in one.
using Observations = std::vector<std::string>;

/// Begins the line about the epoch that a rank reads next, which is the same on every rank of the job.
inline constexpr const char* kNextEpoch = "next epoch: ";

/// What a rank has after a stage of a case.
struct StageResult {
  Observations seen = {};
  std::string state = {};  ///< of the loader, packed, for the next stage; "" if the case ended
};

/// Runs one stage of a case on this rank: a stage is the part of a case that runs in one job.
/// `state`: that of rank `one.state_of(rank)` after the previous stage.
/// Collective over `rank.world`, which has `one.ranks_of(stage)` ranks.
/// Throws CommError if the ranks lose each other; other errors are observations, because all ranks throw them alike.
///
/// Thread rule: the rank's thread, inside a RankScope.
StageResult observe_stage(RankContext& rank, const EquivalenceCase& one, int stage, const std::string& state);

}  // namespace accel::programs
