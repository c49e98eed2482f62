// What every rank observes when one rank ends, hangs or is slow. The texts and the number of updates were compared
// with real Gloo processes that were killed, stopped or slowed.
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "sim/faults/fault_injector.hpp"
#include "tests/sim/faults/expected_effects.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The reference of all tests below: without it, equal wrong results would go unnoticed.
TEST(RankEffectsTest, RunWithoutFaultsTrainsEqualReplicas) {
  EXPECT_THAT(clean_run().errors, Each(""));
  EXPECT_EQ(clean_run().updates(), everywhere(kTrainingSteps));
  for (const auto& rank : clean_run().ranks) EXPECT_EQ(rank.bytes(), clean_run().ranks[0].bytes());
  EXPECT_GT(clean_run().seconds(), kTrainingSteps * kCollectiveSeconds);
}

// All ranks must have made the same number of updates, as none has the gradients of this step.
TEST(RankEffectsTest, CrashBeforeACollectiveFailsItOnAllOthers) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected crash before a collective", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "rank_crash_before_collective", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(RankEffectsTest, CrashOfRank0ClosesItsConnectionsToo) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = 0, .when = kAtStep}});
  const std::string closed_by_0 = "GlooError: Connection closed by peer [rank 0]";
  EXPECT_THAT(run.errors,
              ElementsAre("InjectedFault: injected crash before a collective", closed_by_0, closed_by_0, closed_by_0));
}

// A real crash cannot be caught. A program that catches the injected exception must not communicate again.
TEST(RankEffectsTest, ACrashEndsEvenAProgramThatCatchesIt) {
  const Fault crash{
      .kind = FaultKind::kRankCrashBeforeCollective, .rank = kRank, .when = When{When::Unit::kCollective, 1}};
  std::vector<std::vector<std::string>> errors(kFaultyRanks);
  rehearse({.num_ranks = kFaultyRanks, .faults = std::make_shared<FaultInjector>(std::vector{crash})},
           [&](RankContext& rank) {
             for (int call = 0; call < 3; ++call) {
               try {
                 rank.world.barrier();
               } catch (const std::exception& error) {
                 errors[rank.rank].emplace_back(error.what());
               }
             }
           });
  for (const int rank : {0, 1, 3})
    EXPECT_THAT(errors[rank], AllOf(SizeIs(2), Each(HasSubstr("Connection closed by peer [rank 2]"))))
        << "rank " << rank;
  EXPECT_THAT(errors[kRank], ElementsAre("injected crash before a collective", HasSubstr("Connection closed by peer")));
}

// The gradients of this step are summed already, so the others update once more before they notice.
TEST(RankEffectsTest, CrashBeforeTheOptimizerStepLeavesTheOthersOneStepAhead) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeOptimizerStep, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2,
                                      "InjectedFault: injected crash before the optimizer's step", kClosedBy2));
  EXPECT_EQ(run.updates(), (std::vector<int>{kStep + 1, kStep + 1, kStep, kStep + 1}));
  EXPECT_EQ(run.ranks[1].bytes(), run.ranks[0].bytes());
  EXPECT_EQ(run.ranks[3].bytes(), run.ranks[0].bytes());
  EXPECT_NE(run.ranks[kRank].bytes(), run.ranks[0].bytes());
  expect_fault(run, "rank_crash_before_optimizer_step", {kRank});
}

// The timeout of 30 minutes passes in virtual time only.
TEST(RankEffectsTest, HangTimesOutTheOthersAtOnceAndIsDiagnosed) {
  const auto began = std::chrono::steady_clock::now();
  const auto run = run_with({{.kind = FaultKind::kRankHang, .rank = kRank, .when = kAtStep}});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::minutes(1)) << "the time-out is 30 minutes";
  EXPECT_THAT(run.errors,
              ElementsAre(kTimedOut, kTimedOut, "InjectedFault: injected hang, ended with the run", kTimedOut));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  EXPECT_GE(lost_seconds(run), 0) << "the time-out passes in virtual time";
  expect_fault(run, "rank_hang", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
  EXPECT_THAT(run.report.diagnosis->text, HasSubstr("missing: rank 2 hangs, after all_reduce"));
  std::vector<int> waiting;
  for (const auto& one : run.report.diagnosis->waiting) waiting.push_back(one.rank);
  EXPECT_THAT(waiting, ElementsAre(0, 1, 3));
}

TEST(RankEffectsTest, RestartedRunEndsWithTheUninterruptedParameters) {
  const auto run = run_with({{.kind = FaultKind::kRankRestart, .rank = kRank, .when = kAtStep}});
  expect_outlived(run, "rank_restart");
  // Everything that the first attempt did up to the sum of the gradients of step 5 is repeated.
  EXPECT_GT(lost_seconds(run), gradients_of(kStep) * kCollectiveSeconds);
  EXPECT_LT(lost_seconds(run), clean_run().seconds());
}

// The others wait for the paused rank, so its time appears as their waiting.
TEST(RankEffectsTest, PauseCostsAllRanksItsTimeAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kRankPause, .rank = kRank, .when = kAtStep, .seconds = 0.5}});
  expect_outlived(run, "rank_pause");
  EXPECT_NEAR(lost_seconds(run), 0.5, kRounding);
  EXPECT_NEAR(run.report.times[0].straggler_wait, 0.5, kFewOperators);
  EXPECT_LT(run.report.times[kRank].straggler_wait, kFewOperators);
}

TEST(RankEffectsTest, PauseBeyondTheTimeoutIsATimeoutOfTheOthers) {
  const auto run = run_with({{.kind = FaultKind::kRankPause, .rank = kRank, .when = kAtStep, .seconds = 61}},
                            {.timeout = std::chrono::minutes(1)});
  const std::string timed_out = "GlooError: Timed out waiting 60000ms for recv operation to complete";
  EXPECT_THAT(run.errors,
              ElementsAre(timed_out, timed_out, "GlooError: Connection closed by peer [rank 3]", timed_out));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "rank_pause", {kRank});
}

TEST(RankEffectsTest, SlowRankDelaysAllRanksAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kSlowRank, .rank = kRank, .factor = 4}});
  expect_outlived(run, "slow_rank");
  // A factor of 4 adds three times the compute time.
  EXPECT_NEAR(lost_seconds(run), 3 * clean_run().report.times[kRank].compute, kFewOperators);
  EXPECT_NEAR(run.report.times[kRank].compute, 4 * clean_run().report.times[kRank].compute, kFewOperators);
  EXPECT_NEAR(run.report.times[0].straggler_wait, lost_seconds(run), 2 * kFewOperators);
  EXPECT_LT(run.report.times[kRank].straggler_wait, kFewOperators);
}

TEST(RankEffectsTest, JitterCostsAtMostTwiceItsMeanPerStep) {
  const auto run = run_with({{.kind = FaultKind::kJitter, .seconds = 0.01}});
  expect_outlived(run, "jitter");
  EXPECT_GT(lost_seconds(run), kTrainingSteps * 0.01) << "the maximum of four is above the mean";
  EXPECT_LT(lost_seconds(run), kTrainingSteps * 0.02);
}

// A program that survives the failure of a collective may use its tensors again.
TEST(RankEffectsTest, TensorsOfAFailedCollectiveMayBeUsedAgain) {
  const auto run = run_program(
      {{.kind = FaultKind::kRankCrashBeforeCollective, .rank = 1, .when = When{When::Unit::kCollective, 0}}},
      [](RankContext& rank) {
        auto numbers = at::ones({4});
        for (int attempt = 0; attempt < 3; ++attempt) {
          try {
            rank.world.all_reduce(numbers).wait();
          } catch (const CommError&) {
            numbers.add_(1);
          }
        }
      });
  for (const int rank : {0, 2, 3}) EXPECT_EQ(run.errors[rank], "");
}

}  // namespace
}  // namespace accel::testing
