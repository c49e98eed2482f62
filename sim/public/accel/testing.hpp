#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/backend/simulate.hpp"

/// Runs distributed code in a unit test: N ranks as threads of the test, with real arithmetic and the bits of real
/// Gloo.
///
///     TEST(MyLoss, IsTheSameOnEveryRank) {                       // or Catch2's TEST_CASE
///       auto losses = accel::testing::run_ranks(4, [](accel::RankContext& rank) {
///         auto loss = torch::tensor(float(rank.rank));
///         rank.world.all_reduce(loss).wait();
///         return loss.item<float>();
///       });
///       EXPECT_EQ(losses, std::vector<float>(4, 6));
///     }
///
/// Inside `f` an Accelerator finds its rank automatically. An exception of a rank, a hang or a mismatched call ends all
/// ranks and is thrown here as one sim::RunError that describes every rank, so the test fails with the reason. Hangs
/// and mismatched calls are diagnosed immediately. GoogleTest's EXPECT_* may be used inside `f`; an ASSERT_* ends only
/// its own rank, and ranks that wait for it are diagnosed. Catch2's assertions are not thread-safe and must not be used
/// inside `f`: return the values to check, or throw.
/// Header-only; link accel::accel. Thread rule: one call at a time.
namespace accel::testing {

struct RankOptions {
  sim::RankSchedule schedule =
      {};  ///< e.g. {.kind = ScheduleKind::kRandom, .seed = 7}: one rank at a time, in a seeded order
  sim::CheckLevels checks = {};  ///< e.g. sim::check_levels("races=finding"): what ends the run, and what is a finding
  std::shared_ptr<sim::FaultModel> faults = nullptr;             ///< injected faults
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< for a rank that computes and makes no call
};

/// Calls `f(rank)` or `f()` once on each of `num_ranks` ranks. Returns the results by rank; nothing for void. Throws
/// sim::RunError, or ConfigError for an invalid number of ranks.
template <typename F>
auto run_ranks(int num_ranks, const RankOptions& options, F&& f) {
  const auto call = [&](RankContext& rank) {
    if constexpr (std::is_invocable_v<F&, RankContext&>) {
      return f(rank);
    } else {
      return f();
    }
  };
  const sim::SimulationOptions simulation{.num_ranks = num_ranks,
                                          .timeout = options.timeout,
                                          .schedule = options.schedule,
                                          .checks = options.checks,
                                          .faults = options.faults};
  using Result = decltype(call(std::declval<RankContext&>()));
  if constexpr (std::is_void_v<Result>) {
    sim::simulate(simulation, call);
  } else {
    // Not a std::vector<Result>: ranks write concurrently, and elements of std::vector<bool> share bytes.
    std::vector<std::unique_ptr<Result>> slots(num_ranks > 0 ? num_ranks : 0);
    sim::simulate(simulation,
                  [&](RankContext& rank) { slots[rank.rank_in_job] = std::make_unique<Result>(call(rank)); });
    std::vector<Result> results;
    for (auto& slot : slots) results.push_back(std::move(*slot));
    return results;
  }
}

template <typename F>
auto run_ranks(int num_ranks, F&& f) {
  return run_ranks(num_ranks, RankOptions{}, std::forward<F>(f));
}

}  // namespace accel::testing
