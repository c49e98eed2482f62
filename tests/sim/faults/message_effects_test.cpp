// What every rank observes when messages within a collective are late or lost. The texts are those of Gloo, which a
// user will search for.
#include <gmock/gmock.h>

#include "tests/sim/faults/expected_effects.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::Each;
using ::testing::ElementsAre;

// Ranks wait for each other in every all-reduce, so one slow link slows all of them.
TEST(MessageEffectsTest, DelayedMessagesDelayAllRanksAndChangeNoBit) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = NetworkLink{2, 1}, .seconds = 0.05, .probability = 1}});
  expect_outlived(run, "message_delay");
  // Every sum of gradients crosses the link, one after the other.
  EXPECT_GE(lost_seconds(run), kTrainingSteps * 0.05 - kRounding);
  EXPECT_NEAR(run.report.times[0].straggler_wait, lost_seconds(run), kFewOperators);
}

// The ring uses the links from each rank to the one below it, and 0 -> 2 is not among them.
TEST(MessageEffectsTest, DelaysOfOtherLinksCostTheRingNothing) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = NetworkLink{0, 2}, .seconds = 0.05, .probability = 1}});
  EXPECT_LT(lost_seconds(run), kTrainingSteps * 0.05);
}

// Rank 2 times out first. It ends and closes its connections, so the others fail because of rank 2.
TEST(MessageEffectsTest, LostMessageTimesOutItsReceiverAndClosesItsConnections) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kMessageLoss, .link = NetworkLink{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, kTimedOut, kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "message_loss", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

// The other ranks see closed connections, when the two fail.
TEST(MessageEffectsTest, ResetConnectionIsReportedAtBothEnds) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kConnectionReset, .link = NetworkLink{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, "GlooError: Connection reset by peer [rank 3]",
                                      "GlooError: Connection reset by peer [rank 2]"));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "connection_reset", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(MessageEffectsTest, PartitionTimesOutTheRanksThatWaitAcrossTheCut) {
  const auto run = run_with({{.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtStep}});
  // In the ring each rank receives from the rank above it: 1 from 2, and 3 from 0.
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

// A larger factor must cost more time and nothing else.
TEST(MessageEffectsTest, SlowLinkDelaysAllRanksAndChangesNoBit) {
  const auto slower = [](double factor) {
    return run_with({{.kind = FaultKind::kSlowLink, .link = NetworkLink{2, 1}, .factor = factor}});
  };
  const auto run = slower(1000);
  expect_outlived(run, "slow_link");
  EXPECT_GT(lost_seconds(run), 0);
  // A factor of 1999 adds 1998 times the time, twice the 999 times of a factor of 1000.
  EXPECT_NEAR(lost_seconds(slower(1999)), 2 * lost_seconds(run), kRounding);
}

// A ring all-reduce sends its buffer over each link about twice: once to sum, once to distribute the sums.
TEST(MessageEffectsTest, SlowLinkCostsAnAllReduceTwoPasses) {
  const auto sum_of_4_mb = [](RankContext& rank) {
    auto values = torch::ones({1'000'000});
    rank.world.all_reduce(values).wait();
  };
  const auto fast = run_program({}, sum_of_4_mb),
             slow =
                 run_program({{.kind = FaultKind::kSlowLink, .link = NetworkLink{2, 1}, .factor = 1001}}, sum_of_4_mb);
  // 1000 more times 4 MB at the 1 GB/s of a link without a described network.
  EXPECT_NEAR(slow.seconds() - fast.seconds(), 2 * 1000 * 0.004, 0.5);
}

// A delay just above the timeout of one minute.
TEST(MessageEffectsTest, AMessageAfterTheTimeoutIsLost) {
  const FaultyRunOptions impatient{.timeout = std::chrono::minutes(1)};
  const std::string timed_out = "GlooError: Timed out waiting 60000ms for recv operation to complete";
  const auto delay = run_with(
      {{.kind = FaultKind::kMessageDelay, .link = NetworkLink{3, 2}, .seconds = 61, .probability = 1}}, impatient);
  EXPECT_THAT(delay.errors, ElementsAre(kClosedBy2, kClosedBy2, timed_out, kClosedBy2));
  expect_fault(delay, "message_delay", {2, 3});
  const auto jitter = run_with({{.kind = FaultKind::kJitter, .rank = kRank, .seconds = 600}}, impatient);
  EXPECT_THAT(jitter.errors,
              ElementsAre(timed_out, timed_out, "GlooError: Connection closed by peer [rank 3]", timed_out));
  expect_fault(jitter, "jitter", {kRank});
  const auto some_jitter = run_with({{.kind = FaultKind::kJitter, .rank = kRank, .seconds = 40}},
                                    impatient);  // 0 to 80 seconds, so more than 60 in some step
  expect_fault(some_jitter, "jitter", {kRank});
  const auto store = run_with({{.kind = FaultKind::kStoreSlow, .seconds = 61}}, impatient);
  EXPECT_THAT(
      store.errors,
      Each("InjectedFault: The client socket has timed out after 60000ms while trying to connect to the store"));
}

}  // namespace
}  // namespace accel::testing
