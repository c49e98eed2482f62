// What every rank sees of faults of messages on their way.
#include <gmock/gmock.h>

#include "tests/sim/faults/expected_effects.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::Each;
using ::testing::ElementsAre;

TEST(MessageEffectsTest, DelayedMessagesHoldUpAllRanksAndChangeNoBit) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = Link{2, 1}, .seconds = 0.05, .probability = 1}});
  expect_outlived(run, "message_delay");
  // Every sum of gradients crosses the link, each in its turn.
  EXPECT_GE(lost_seconds(run), kTrainingSteps * 0.05 - kRounding);
  EXPECT_NEAR(run.report.times[0].straggler_wait, lost_seconds(run), kFewOperators);
}

TEST(MessageEffectsTest, DelaysOfOtherLinksCostTheRingNothing) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = Link{0, 2}, .seconds = 0.05, .probability = 1}});
  EXPECT_LT(lost_seconds(run), kTrainingSteps * 0.05);
}

TEST(MessageEffectsTest, LostMessageTimesOutItsReceiverAndTheOthersFindThatRankGone) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kMessageLoss, .link = Link{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, kTimedOut, kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "message_loss", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(MessageEffectsTest, ResetConnectionIsSeenByBothItsEndsAndTheOthersFindThemGone) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kConnectionReset, .link = Link{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, "GlooError: Connection reset by peer [rank 3]",
                                      "GlooError: Connection reset by peer [rank 2]"));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "connection_reset", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(MessageEffectsTest, PartitionTimesOutTheRanksThatWaitAcrossTheCut) {
  const auto run = run_with({{.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtStep}});
  // In the ring each rank receives from the one above it: 1 from 2, and 3 from 0.
  const std::string closed_by_1 = "GlooError: Connection closed by peer [rank 1]";
  EXPECT_THAT(run.errors, ElementsAre(closed_by_1, kTimedOut, closed_by_1, kTimedOut));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "partition", {0, 1});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(MessageEffectsTest, OneWayPartitionCutsOffTheOtherSideOnly) {
  const auto run =
      run_with({{.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtStep, .one_way = true}});
  const std::string closed_by_3 = "GlooError: Connection closed by peer [rank 3]";
  EXPECT_THAT(run.errors, ElementsAre(closed_by_3, closed_by_3, closed_by_3, kTimedOut));
}

TEST(MessageEffectsTest, SlowLinkHoldsUpAllRanksAndChangesNoBit) {
  const auto slower = [](double factor) {
    return run_with({{.kind = FaultKind::kSlowLink, .link = Link{2, 1}, .factor = factor}});
  };
  const auto run = slower(1000);
  expect_outlived(run, "slow_link");
  EXPECT_GT(lost_seconds(run), 0);
  EXPECT_NEAR(lost_seconds(slower(1999)), 2 * lost_seconds(run), kRounding);
}

TEST(MessageEffectsTest, WhatComesAfterTheTimeoutHasNotCome) {
  const FaultyRunOptions impatient{.timeout = std::chrono::minutes(1)};
  const std::string timed_out = "GlooError: Timed out waiting 60000ms for recv operation to complete";
  const auto delay =
      run_with({{.kind = FaultKind::kMessageDelay, .link = Link{3, 2}, .seconds = 61, .probability = 1}}, impatient);
  EXPECT_THAT(delay.errors, ElementsAre(kClosedBy2, kClosedBy2, timed_out, kClosedBy2));
  expect_fault(delay, "message_delay", {2, 3});
  const auto jitter = run_with({{.kind = FaultKind::kJitter, .rank = kRank, .seconds = 600}}, impatient);
  EXPECT_THAT(jitter.errors,
              ElementsAre(timed_out, timed_out, "GlooError: Connection closed by peer [rank 3]", timed_out));
  expect_fault(jitter, "jitter", {kRank});
  const auto some_jitter = run_with({{.kind = FaultKind::kJitter, .rank = kRank, .seconds = 40}},
                                    impatient);  // more than 60 of 0 to 80, at some step
  expect_fault(some_jitter, "jitter", {kRank});
  const auto store = run_with({{.kind = FaultKind::kStoreSlow, .seconds = 61}}, impatient);
  EXPECT_THAT(
      store.errors,
      Each("InjectedFault: The client socket has timed out after 60000ms while trying to connect to the store"));
}

}  // namespace
}  // namespace accel::testing
