#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/backend/simulate.hpp"

/// Distributed code in a unit test: N ranks as threads of the test, real arithmetic, the bits of real Gloo.
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
/// In `f` an Accelerator finds its rank by itself. What a rank throws, and a hang or a mismatched call, which are
/// diagnosed at once, end all ranks and are thrown here as one sim::RunError that tells of every rank, so the test
/// fails with the reason. GoogleTest's EXPECT_* may be used inside `f`; an ASSERT_* ends its own rank alone, and those
/// that wait for it are diagnosed. Catch2's assertions may not, as they are not made for threads: return what is to be
/// checked, or throw.
///
/// Header-only; link accel::accel. Thread rule: one call at a time.
namespace accel::testing {

struct RankOptions {
  sim::RankSchedule schedule = {};  ///< e.g. {.kind = ScheduleKind::kRandom, .seed = 7}: one rank at a time, by a seed
  std::shared_ptr<sim::FaultModel> faults = nullptr;             ///< what goes wrong
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< for a rank that computes and never calls
};

/// Calls `f(rank)`, or `f()`, once on each of `num_ranks` ranks. Returns what each returned, by rank; nothing for void.
/// Throws sim::RunError, or ConfigError for an impossible number of ranks.
template <typename F>
auto run_ranks(int num_ranks, const RankOptions& options, F&& f) {
  const auto call = [&](RankContext& rank) {
    if constexpr (std::is_invocable_v<F&, RankContext&>) {
      return f(rank);
    } else {
      return f();
    }
  };
  const sim::SimulationOptions simulation{
      .num_ranks = num_ranks, .timeout = options.timeout, .schedule = options.schedule, .faults = options.faults};
  using Result = decltype(call(std::declval<RankContext&>()));
  if constexpr (std::is_void_v<Result>) {
    sim::simulate(simulation, call);
  } else {
    // Not a std::vector<Result> yet: ranks write at once, and those of bool share bytes.
    std::vector<std::unique_ptr<Result>> slots(num_ranks > 0 ? num_ranks : 0);
    sim::simulate(simulation, [&](RankContext& rank) { slots[rank.rank] = std::make_unique<Result>(call(rank)); });
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
