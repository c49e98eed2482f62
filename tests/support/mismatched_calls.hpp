#pragma once

#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

namespace accel::testing {

/// Runs a program that is wrong on one rank. In the second of its three collectives rank 2 calls another operation
/// ("wrong_op"), uses another reduce operation ("wrong_reduce_op"), more elements ("wrong_size") or another shape
/// ("wrong_shape"). Returns the result of the second: ranks contribute 1, 2, 3 and 4, so each of the four sums is
/// 10.
///
/// Thread rule: a rank's thread.
std::vector<float> call_with_a_mismatch(RankContext& rank, const std::string& mismatch);

}  // namespace accel::testing
