// Exploring schedules: running many seeds and shrinking the first failure to the fewest ranks, steps and faults.
// The runs are functions here, so that the search itself is tested in milliseconds.
#include "sim/engine/scheduling/explore.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

bool contains(const std::vector<int>& faults, int fault) {
  return std::find(faults.begin(), faults.end(), fault) != faults.end();
}

// The first failing seed is enough; the rest of the time is better spent on reducing it.
TEST(ExploreTest, RunsOneSeedAfterTheOtherUntilOneGoesWrong) {
  std::vector<std::uint64_t> seeds;
  const auto run = [&](const Trial& trial) {
    seeds.push_back(trial.schedule.seed);
    return std::string(trial.schedule.seed == 104 ? "hang" : "");
  };
  const auto found = explore({.num_ranks = 1, .max_steps = 1, .schedule = {.seed = 100}}, 50, run);
  EXPECT_EQ(found.num_schedules, 5);
  EXPECT_EQ(found.signature, "hang");
  ASSERT_TRUE(found.failure.has_value());
  EXPECT_EQ(found.failure->schedule.seed, 104u);
  // The seeds after the fifth belong to the shrinking phase.
  EXPECT_THAT(std::vector<std::uint64_t>(seeds.begin(), seeds.begin() + 5), ElementsAre(100, 101, 102, 103, 104));
}

// All schedules that were asked for must really be run.
TEST(ExploreTest, SuccessfulRunsHaveNoFailure) {
  int runs = 0;
  const auto found = explore({.num_ranks = 4}, 30, [&](const Trial&) { return ++runs, ""; });
  EXPECT_EQ(runs, 30);
  EXPECT_EQ(found.num_schedules, 30);
  EXPECT_FALSE(found.failure.has_value());
  EXPECT_EQ(found.signature, "");
}

// The failure depends on thresholds only, so the smallest trial is known and shrinking must find exactly that one.
TEST(ExploreTest, TheSmallestTrialIsFound) {
  std::mt19937_64 random(5);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<std::uint64_t>(end)); };
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks_needed = 1 + below(8), ranks = ranks_needed + below(8), steps_needed = 1 + below(60),
              steps = steps_needed + below(60);
    std::vector<int> faults, faults_needed;
    for (int fault = 0; fault < 6; ++fault) {
      if (below(2) == 0) faults.push_back(fault);
      if (!faults.empty() && faults.back() == fault && below(2) == 0) faults_needed.push_back(fault);
    }
    const auto run = [&](const Trial& smaller) -> std::string {
      const bool has_all = std::all_of(faults_needed.begin(), faults_needed.end(),
                                       [&](int fault) { return contains(smaller.faults, fault); });
      return smaller.num_ranks >= ranks_needed && smaller.max_steps >= steps_needed && has_all ? "desync" : "";
    };
    const auto small = shrink({.num_ranks = ranks, .max_steps = steps, .faults = faults}, "desync", run);
    EXPECT_EQ(small.num_ranks, ranks_needed);
    EXPECT_EQ(small.max_steps, steps_needed);
    EXPECT_THAT(small.faults, ElementsAreArray(faults_needed));
    EXPECT_EQ(run(small), "desync");
  }
}

// A smaller trial that fails differently is another bug. Accepting it would report a cause that is not in the
// original.
TEST(ExploreTest, ShrinkingKeepsTheSignature) {
  const auto run = [](const Trial& trial) -> std::string {
    if (trial.num_ranks < 3) return "hang";  // fails as well, but differently
    if (trial.faults.empty()) return "rank_failure";
    return trial.max_steps >= 7 ? "desync" : "hang";
  };
  const auto small = shrink({.num_ranks = 8, .max_steps = 100, .faults = {0, 1}}, "desync", run);
  EXPECT_EQ(small.num_ranks, 3);
  EXPECT_THAT(small.faults, ElementsAre(1));
  EXPECT_EQ(small.max_steps, 7);
}

// With another number of ranks a seed gives another schedule, so the same seed may no longer fail.
TEST(ExploreTest, WithFewerRanksSeedsNearbyAreTried) {
  const auto run = [](const Trial& trial) -> std::string {
    return trial.schedule.seed % 4 == static_cast<std::uint64_t>(trial.num_ranks) % 4 ? "hang" : "";
  };
  const auto small = shrink({.num_ranks = 6, .max_steps = 1, .schedule = {.seed = 2}}, "hang", run);
  EXPECT_EQ(small.num_ranks, 1);
  EXPECT_EQ(run(small), "hang");
}

TEST(ExploreTest, StepsThatCannotBeFewerStayAsTheyWere) {
  // Fails at exactly one number of steps, which halving misses. The result must still be a trial that fails.
  const auto run = [](const Trial& trial) -> std::string { return trial.max_steps == 100 ? "hang" : ""; };
  const auto small = shrink({.num_ranks = 1, .max_steps = 100}, "hang", run);
  EXPECT_EQ(run(small), "hang");
  // Fails only if all steps run, whose number is unknown.
  const auto at_the_end = [](const Trial& trial) -> std::string { return trial.max_steps == 0 ? "hang" : ""; };
  EXPECT_EQ(shrink({.num_ranks = 1, .max_steps = 0}, "hang", at_the_end).max_steps, 0);
}

// Rank 0 receives a message from any rank and assumes that it is rank 1's.
std::string run_race(const Trial& trial) {
  World world({.num_ranks = trial.num_ranks, .schedule = trial.schedule});
  int source = 1;
  run_ranks(world, [&](int rank) {
    std::vector<int> everyone;
    for (int other = 0; other < trial.num_ranks; ++other) everyone.push_back(other);
    auto group = world.group("world", everyone);
    if (rank > 0) {
      world.send(*group, rank, 0, 0, {.op = Collective::kSend}, nullptr);
      return;
    }
    if (trial.num_ranks == 1) return;
    auto meeting =
        world.receive(*group, -1, 0, 0, {.op = Collective::kRecv}, nullptr, [](const auto&, const auto&, auto) {});
    world.wait(0, *meeting);
    source = meeting->peer();
  });
  return source == 1 ? "" : "wrong sender";
}

// Two ranks give no choice of senders, hence three.
TEST(ExploreTest, RaceIsFoundAndNeedsThreeRanks) {
  for (const auto kind : {ScheduleKind::kRandom, ScheduleKind::kPct}) {
    const auto found =
        explore({.num_ranks = 5, .max_steps = 1, .schedule = {.kind = kind, .pct_events = 10}}, 200, run_race);
    ASSERT_TRUE(found.failure.has_value()) << name_of(kind);
    EXPECT_EQ(found.signature, "wrong sender");
    EXPECT_EQ(found.failure->num_ranks, 3) << "the receiver and two racing senders";
    EXPECT_EQ(run_race(*found.failure), "wrong sender") << "the trial is reproducible";
  }
}

}  // namespace
}  // namespace accel::sim
