#pragma once

#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "sim/programs/equivalence/equivalence_case.hpp"

namespace accel::programs {

/// Everything that one rank observes of a case, in order, one line each: batches, end flags and remainders, results of
/// operations, states of generators, losses, parameters. The last line is the error, if the case ends in one.
using Observations = std::vector<std::string>;

/// Runs a case on this rank. Collective over `rank.world`, which has `one.ranks` ranks. Throws CommError if the ranks
/// lose each other; other errors are observations, because all ranks throw them alike.
///
/// Thread rule: the rank's thread, inside a RankScope.
Observations observe_case(RankContext& rank, const EquivalenceCase& one);

}  // namespace accel::programs
