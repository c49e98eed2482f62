#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/faults/faulty_runs.hpp"

/// Expectations of the tests of fault effects, for the small training with a fault on rank 2 at step 5.
///
/// Thread rule: none.
namespace accel::testing {

inline constexpr int kRank = 2;
inline constexpr int kStep = 5;
inline constexpr sim::When kAtStep{sim::When::Unit::kStep, kStep};
inline constexpr double kRounding = 1e-9;  // tolerance of virtual seconds
inline constexpr double kFewOperators =
    100 * kOperatorSeconds;  // ranks differ by this: one makes buckets, one broadcasts

inline const std::string kClosedBy2 = "GlooError: Connection closed by peer [rank 2]";
inline const std::string kTimedOut = "GlooError: Timed out waiting 1800000ms for recv operation to complete";

/// Returns the number of the world's collective that sums the gradients of a step, from the second step on. The
/// calls of `prepare` come before, and one in which ranks agree on rebuilt buckets.
std::int64_t gradients_of(int step);

std::vector<int> everywhere(int updates);

void expect_fault(const FaultyRun& run, const std::string& name, const std::vector<int>& ranks);
void expect_call(const FaultyRun& run, const std::string& op, std::int64_t sequence);
/// Expects that the run continued to its end with the parameters of a run without faults, on every rank.
void expect_outlived(const FaultyRun& run, const std::string& name);

/// Returns the virtual seconds in addition to those of a run without faults.
double lost_seconds(const FaultyRun& run);

}  // namespace accel::testing
