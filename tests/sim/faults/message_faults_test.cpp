// Faults in a program that sends and receives its own messages: four ranks pass numbers downwards, ten times
// around.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/faults/faulty_runs.hpp"

namespace accel::testing::message_faults_test {
namespace {

using namespace sim;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kRounds = 10;
constexpr When kAtFifth{When::Unit::kCollective, 5};
// Every rank receives 0 to 9.
constexpr double kSum = kRounds * (kRounds - 1) / 2;
const auto kTimedOut = ::testing::AllOf(::testing::StartsWith("CommError: "),
                                        HasSubstr("Timed out waiting 1800000ms for recv operation to complete"));

auto closed_by(int rank) { return HasSubstr("Connection closed by peer [rank " + std::to_string(rank) + "]"); }

struct Passing {
  FaultyRun run;
  std::vector<double> sums = std::vector<double>(kFaultyRanks);  ///< sums of what each rank received
};

Passing pass_with(const Fault& fault, const FaultyRunOptions& options = {}) {
  Passing passing;
  passing.run = run_program(
      {fault},
      [&](RankContext& rank) {
        for (int round = 0; round < kRounds; ++round) {
          auto mine = at::full({4}, static_cast<float>(round)), theirs = at::zeros({4});
          // Sends do not block, so a ring in which everyone sends first is legal.
          auto sent = rank.world.send(mine, (rank.rank + kFaultyRanks - 1) % kFaultyRanks);
          rank.world.recv(theirs, (rank.rank + 1) % kFaultyRanks).wait();
          sent.wait();
          passing.sums[rank.rank] += theirs[0].item<double>();
        }
      },
      options);
  return passing;
}

// The fault occurred once, and the run survived it with the right sums and without a finding.
void expect_outlived(const Passing& passing, const std::string& fault) {
  EXPECT_THAT(passing.run.errors, Each(""));
  EXPECT_THAT(passing.sums, Each(kSum));
  EXPECT_THAT(passing.run.report.findings, ::testing::IsEmpty());
  ASSERT_THAT(passing.run.report.strikes, SizeIs(1));
  EXPECT_EQ(passing.run.report.strikes[0].name, fault);
}

// The run ended because of the fault, and the diagnosis names it with its ranks.
void expect_fault(const Passing& passing, const std::string& fault, const std::vector<int>& ranks) {
  ASSERT_TRUE(passing.run.report.diagnosis);
  EXPECT_EQ(passing.run.report.diagnosis->fault, fault);
  EXPECT_EQ(passing.run.report.diagnosis->ranks, ranks);
}

double seconds_without_faults() {
  // A pause of 0 seconds gives the same number of events as the faulty runs.
  static const double seconds =
      pass_with({.kind = FaultKind::kRankPause, .rank = 0, .when = When{When::Unit::kCollective, 5}, .seconds = 0})
          .run.seconds();
  return seconds;
}

TEST(MessageFaultsTest, ADelayedMessageIsLateAndChangesNothing) {
  const auto passing =
      pass_with({.kind = FaultKind::kMessageDelay, .link = NetworkLink{2, 1}, .seconds = 0.05, .probability = 1});
  expect_outlived(passing, "message_delay");
  // What rank 2 sends depends on what rank 1 received three rounds earlier, so delays accumulate once per turn of
  // the ring.
  EXPECT_NEAR(passing.run.seconds() - seconds_without_faults(), 0.05 * (1 + (kRounds - 1) / kFaultyRanks), 0.002);
}

// The messages are tiny, so only very large factors make a difference that can be measured.
TEST(MessageFaultsTest, ASlowLinkTakesItsTime) {
  const auto slower = [](double factor) {
    return pass_with({.kind = FaultKind::kSlowLink, .link = NetworkLink{2, 1}, .factor = factor});
  };
  expect_outlived(slower(1000), "slow_link");
  EXPECT_GT(slower(1e9).run.seconds(), slower(1e8).run.seconds());
}

// A real receiver cannot tell a late message from a lost one.
TEST(MessageFaultsTest, ADelayBeyondTheTimeoutIsALostMessage) {
  const auto passing =
      pass_with({.kind = FaultKind::kMessageDelay, .link = NetworkLink{2, 1}, .seconds = 2000, .probability = 1});
  EXPECT_THAT(passing.run.errors[1], kTimedOut);
  EXPECT_THAT(passing.sums, Each(::testing::Lt(kSum)));
  expect_fault(passing, "message_delay", {1, 2});
}

// Each delay alone, 1,000 s, is below the timeout of 1,800 s; both faults delay the same message.
TEST(MessageFaultsTest, DelaysThatExceedTheTimeoutTogetherLoseTheMessage) {
  const Fault delay{.kind = FaultKind::kMessageDelay, .link = NetworkLink{2, 1}, .seconds = 1000, .probability = 1};
  const auto run = run_program({delay, delay}, [](RankContext& rank) {
    auto number = at::zeros({1});
    if (rank.rank == 2) rank.world.send(number, 1).wait();
    if (rank.rank == 1) rank.world.recv(number, 2).wait();
  });
  EXPECT_THAT(run.errors[1], kTimedOut);
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->fault, "message_delay");
}

// With this factor, a message takes longer than the timeout.
TEST(MessageFaultsTest, ALinkThatIsTooSlowLosesMessages) {
  const auto passing = pass_with({.kind = FaultKind::kSlowLink, .link = NetworkLink{2, 1}, .factor = 1e13});
  EXPECT_THAT(passing.run.errors[1], kTimedOut);
  expect_fault(passing, "slow_link", {1, 2});
}

// The others see closed connections when the receiver gives up, as over real Gloo.
TEST(MessageFaultsTest, ALostMessageTimesOutItsReceiverOnly) {
  const auto passing = pass_with({.kind = FaultKind::kMessageLoss, .link = NetworkLink{3, 2}, .when = kAtFifth});
  EXPECT_THAT(passing.run.errors, ElementsAre(closed_by(2), closed_by(2), kTimedOut, closed_by(2)));
  EXPECT_EQ(passing.sums[2], 0 + 1 + 2 + 3 + 4);
  expect_fault(passing, "message_loss", {2, 3});
}

// Unlike a lost message, a reset is noticed at once.
TEST(MessageFaultsTest, AResetConnectionIsReportedAtBothEnds) {
  const auto passing = pass_with({.kind = FaultKind::kConnectionReset, .link = NetworkLink{3, 2}, .when = kAtFifth});
  EXPECT_THAT(passing.run.errors[2], HasSubstr("Connection reset by peer [rank 3]"));
  EXPECT_THAT(passing.run.errors[3], HasSubstr("Connection reset by peer [rank 2]"));
  EXPECT_THAT(passing.run.errors[0], closed_by(2));
  expect_fault(passing, "connection_reset", {2, 3});
}

TEST(MessageFaultsTest, APartitionTimesOutReceiversAcrossTheCut) {
  const auto passing = pass_with({.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtFifth});
  EXPECT_THAT(passing.run.errors, ElementsAre(closed_by(1), kTimedOut, closed_by(1), kTimedOut))
      << "rank 1 receives from 2, and rank 3 from 0";
  expect_fault(passing, "partition", {0, 1});
}

// Its neighbours fail directly, the fourth rank through them.
TEST(MessageFaultsTest, ARankThatCrashesClosesItsConnections) {
  const auto passing = pass_with({.kind = FaultKind::kRankCrashBeforeCollective, .rank = 2, .when = kAtFifth});
  EXPECT_EQ(passing.run.errors[2], "InjectedFault: injected crash before a collective");
  for (const int rank : {0, 1, 3}) EXPECT_THAT(passing.run.errors[rank], closed_by(2));
  expect_fault(passing, "rank_crash_before_collective", {2});
}

// The wall clock does not have to wait 30 minutes: once all others wait, virtual time jumps to the time-out.
TEST(MessageFaultsTest, ARankThatHangsTimesOutTheOthersAtOnce) {
  const auto passing = pass_with({.kind = FaultKind::kRankHang, .rank = 2, .when = kAtFifth});
  EXPECT_THAT(passing.run.errors,
              ElementsAre(kTimedOut, kTimedOut, "InjectedFault: injected hang, ended with the run", kTimedOut));
  expect_fault(passing, "rank_hang", {2});
}

// The same pause under two timeouts, one longer and one shorter.
TEST(MessageFaultsTest, APauseIsToleratedUpToTheTimeout) {
  const Fault pause{.kind = FaultKind::kRankPause, .rank = 2, .when = kAtFifth, .seconds = 61};
  expect_outlived(pass_with(pause), "rank_pause");
  const auto late = pass_with(pause, {.timeout = std::chrono::minutes(1)});
  EXPECT_THAT(late.run.errors[1], HasSubstr("Timed out waiting 60000ms"));
  expect_fault(late, "rank_pause", {2});
}

// The program only sends messages, so the fault cannot occur, and the report must say so.
TEST(MessageFaultsTest, AFaultOfCollectivesDoesNotAffectMessages) {
  const auto passing = pass_with({.kind = FaultKind::kWrongCall, .rank = 2, .when = kAtFifth});
  EXPECT_THAT(passing.run.errors, Each(""));
  EXPECT_THAT(passing.run.report.findings, ElementsAre(HasSubstr("the fault has not struck")));
}

}  // namespace
}  // namespace accel::testing::message_faults_test
