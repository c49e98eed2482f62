#pragma once

#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

namespace accel::testing {

/// A program that is wrong on one rank: three collectives, in the second of which rank 2 asks for another operation
/// ("wrong_op"), another reduce operation ("wrong_reduce_op"), more elements ("wrong_size") or another shape
/// ("wrong_shape"). Returns what the second gave: of ranks that bring 1, 2, 3 and 4, a sum is 10 in each of its four
/// elements.
///
/// Thread rule: a rank's thread.
std::vector<float> call_with_a_mismatch(RankContext& rank, const std::string& mismatch);

}  // namespace accel::testing
