// Properties of complete plans of faults: faults compose, a seed determines them in every schedule, and an empty
// plan changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/files/files.hpp"
#include "sim/faults/fault_plan.hpp"
#include "tests/sim/faults/faulty_runs.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

const std::vector<RankSchedule> kSchedules{
    {.kind = ScheduleKind::kParallel},          {.kind = ScheduleKind::kRoundRobin},
    {.kind = ScheduleKind::kRandom, .seed = 1}, {.kind = ScheduleKind::kRandom, .seed = 2},
    {.kind = ScheduleKind::kPct, .seed = 1},    {.kind = ScheduleKind::kPct, .seed = 2}};

std::vector<std::string> names_of(const std::vector<AppliedFault>& strikes) {
  std::vector<std::string> names;
  for (const auto& strike : strikes) names.push_back(strike.name);
  return names;
}

When at_step(int step) { return {When::Unit::kStep, step}; }

// The injector observes every call, so this guards against an observer effect in bits and in virtual time.
TEST(FaultPlansTest, InjectorWithoutAFaultChangesNoBitAndNoTime) {
  for (const auto& schedule : kSchedules) {
    const auto run = run_with({}, {.schedule = schedule});
    EXPECT_THAT(run.errors, Each(""));
    for (int rank = 0; rank < kFaultyRanks; ++rank)
      EXPECT_EQ(run.ranks[rank].bytes(), clean_run().ranks[rank].bytes()) << name_of(schedule.kind);
    EXPECT_DOUBLE_EQ(run.seconds(), clean_run().seconds()) << name_of(schedule.kind);
    EXPECT_THAT(run.report.strikes, ::testing::IsEmpty());
  }
}

/// Returns everything that a run shows of a fault, as one text.
std::string outcome_of(const FaultyRun& run) {
  std::string text = fmt::format("exit {}", run.exit_code);
  for (const auto& error : run.errors) text += "\n" + error;
  for (const auto& strike : run.report.strikes)
    text += fmt::format("\n{} on {} in #{}", strike.text, describe_ranks(strike.ranks), strike.sequence);
  for (const int updates : run.updates()) text += fmt::format("\n{} updates", updates);
  if (run.report.diagnosis)
    text += fmt::format("\n{} of {} at #{}", run.report.diagnosis->fault, describe_ranks(run.report.diagnosis->ranks),
                        run.report.diagnosis->sequence);
  return text;
}

// Otherwise a fault found under one schedule could not be replayed under another.
TEST(FaultPlansTest, ASeededFaultHitsTheSameRankInEverySchedule) {
  for (int kind = 0; kind < std::ssize(kFaultRules); ++kind) {
    const Fault fault{
        .kind = static_cast<FaultKind>(kind),
        .rank = rule_of(static_cast<FaultKind>(kind)).has(FaultRule::kRank) ? std::optional(kAnyRank) : std::nullopt,
        .seed = 11};
    const auto parallel = outcome_of(run_with({fault}, {.schedule = kSchedules.front()}));
    for (const auto& schedule : kSchedules)
      EXPECT_EQ(outcome_of(run_with({fault}, {.schedule = schedule})), parallel)
          << name_of(schedule.kind) << " " << schedule.seed;
  }
}

// Otherwise trying many seeds would test the same rank again and again.
TEST(FaultPlansTest, SeedsHitDifferentRanks) {
  std::set<std::vector<int>> struck;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .seed = seed}});
    ASSERT_TRUE(run.report.diagnosis);
    struck.insert(run.report.diagnosis->ranks);
  }
  EXPECT_EQ(struck, (std::set<std::vector<int>>{{0}, {1}, {2}, {3}}));
}

// Several harmless faults together must still be harmless.
TEST(FaultPlansTest, LateRanksAndLinksAddUpAndChangeNoBit) {
  const auto run = run_with({{.kind = FaultKind::kRankPause, .rank = 1, .when = at_step(3), .seconds = 0.5},
                             {.kind = FaultKind::kRankPause, .rank = 2, .when = at_step(4), .seconds = 0.25},
                             {.kind = FaultKind::kStoreSlow, .seconds = 0.05}});
  EXPECT_THAT(run.errors, Each(""));
  EXPECT_THAT(names_of(run.report.strikes), UnorderedElementsAre("rank_pause", "rank_pause", "store_slow"));
  // 0.5 + 0.25 + 0.05 seconds: the faults are at different steps, so their delays add up.
  EXPECT_NEAR(run.seconds() - clean_run().seconds(), 0.8, 1e-9);
  for (int rank = 0; rank < kFaultyRanks; ++rank) EXPECT_EQ(run.ranks[rank].bytes(), clean_run().ranks[rank].bytes());
}

// After the first crash the run ends, so the second fault is not reached and must not be reported.
TEST(FaultPlansTest, OnlyTheFirstOfTwoCrashesOccurs) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = 1, .when = at_step(7)},
                             {.kind = FaultKind::kRankCrashBeforeCollective, .rank = 3, .when = at_step(2)}});
  EXPECT_THAT(names_of(run.report.strikes), SizeIs(1));
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_THAT(run.report.diagnosis->ranks, ElementsAre(3));
  EXPECT_EQ(run.updates(), std::vector<int>(kFaultyRanks, 2));
}

// Four faults occur, but only the crash stops the run. The diagnosis must not blame a delay.
TEST(FaultPlansTest, FailureIsAttributedToTheFaultThatStopsTheRun) {
  const auto run =
      run_with({{.kind = FaultKind::kRankCrashBeforeOptimizerStep, .rank = 1, .when = at_step(6)},
                {.kind = FaultKind::kSlowRank, .rank = 2, .factor = 2},
                {.kind = FaultKind::kNanGradient, .rank = 0, .when = at_step(3), .value = BadValue::kNan},
                {.kind = FaultKind::kMessageDelay, .link = NetworkLink{1, 0}, .seconds = 0.01, .probability = 1}});
  EXPECT_THAT(names_of(run.report.strikes),
              UnorderedElementsAre("rank_crash_before_optimizer_step", "slow_rank", "nan_gradient", "message_delay"));
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->fault, "rank_crash_before_optimizer_step");
  EXPECT_THAT(run.report.diagnosis->ranks, ElementsAre(1));
}

// Otherwise a run with a crash would restart forever.
TEST(FaultPlansTest, AFaultDoesNotOccurAgainInTheRestartedRun) {
  const TemporaryFolder folder;
  const FaultyRunOptions saving{.places = {.after_update = [&](RankContext& rank, int step) {
                                  write_atomically(*rank.files, folder.path("rank" + std::to_string(rank.rank)),
                                                   std::to_string(step));
                                }}};
  // Rank 1 dies in its first save while rank 3 is about to be restarted.
  const auto run = run_with({{.kind = FaultKind::kRankRestart, .rank = 3, .when = at_step(0)},
                             {.kind = FaultKind::kTornWrite, .rank = 1, .bytes = 0},
                             {.kind = FaultKind::kRankRestart, .rank = 2, .when = at_step(4)},
                             {.kind = FaultKind::kRankPause, .rank = 0, .when = at_step(1), .seconds = 0.5}},
                            saving);
  EXPECT_THAT(run.errors, Each(""));
  EXPECT_THAT(names_of(run.report.strikes),
              UnorderedElementsAre("rank_restart", "torn_write", "rank_pause", "rank_restart"));
  for (int rank = 0; rank < kFaultyRanks; ++rank) EXPECT_EQ(run.ranks[rank].bytes(), clean_run().ranks[rank].bytes());
}

}  // namespace
}  // namespace accel::testing
