#pragma once

/// Runs a function on the ranks of a chosen backend: simulated ranks, or real Gloo ranks, one per thread.
///
///     for (auto backend : {accel::testing::Backend::kSim, accel::testing::Backend::kGlooThreads})
///       auto sums = accel::testing::collect_ranks(backend, 4, [](accel::RankContext& rank) { return sum(rank); });
///
/// Link accel::testing of find_package(accel COMPONENTS testing). <accel/testing.hpp> runs simulated ranks without it.
#include "tests/support/run_ranks.hpp"
