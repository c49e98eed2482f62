// What every rank sees of each kind of fault: a small training on four ranks, the fault on rank 2 at step 5. The same
// stands in sim/faults/README.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/files.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "sim/faults/fault_injector.hpp"
#include "sim/programs/runtime/exit_code.hpp"
#include "tests/sim/faults/faulty_runs.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kRank = 2;
constexpr int kStep = 5;
constexpr When kAtStep{When::Unit::kStep, kStep};
constexpr double kRounding = 1e-9;  // of virtual seconds
constexpr double kFewOperators =
    100 * kOperatorSeconds;  // by which ranks differ: one makes the buckets, one broadcasts

const std::string kClosedBy2 = "GlooError: Connection closed by peer [rank 2]";
const std::string kTimedOut = "GlooError: Timed out waiting 1800000ms for recv operation to complete";

/// The collective of the world that sums the gradients of a step, from the second on: those of `prepare` come before,
/// and one in which ranks agree on new buckets.
std::int64_t gradients_of(int step) {
  static const auto of_second =
      run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = 0, .when = When{When::Unit::kStep, 1}}})
          .report.diagnosis.value()
          .sequence;
  return static_cast<std::int64_t>(of_second) + step - 1;
}

std::vector<int> everywhere(int updates) { return std::vector<int>(kFaultyRanks, updates); }

void expect_fault(const FaultyRun& run, const std::string& name, const std::vector<int>& ranks) {
  EXPECT_EQ(run.exit_code, programs::kDiagnosed);
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->kind, Diagnosis::Kind::kFault);
  EXPECT_EQ(run.report.diagnosis->fault, name);
  EXPECT_EQ(run.report.diagnosis->ranks, ranks);
  EXPECT_THAT(run.report.diagnosis->text, StartsWith("injected fault: " + name));
  EXPECT_THAT(run.report.strikes, SizeIs(1));
}

void expect_call(const FaultyRun& run, const std::string& op, std::int64_t sequence) {
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->op, op);
  EXPECT_EQ(run.report.diagnosis->group, "world");
  EXPECT_EQ(static_cast<std::int64_t>(run.report.diagnosis->sequence), sequence);
}

/// The run went on to its end, and its parameters are those of a run without faults, on every rank.
void expect_outlived(const FaultyRun& run, const std::string& name) {
  EXPECT_THAT(run.errors, Each(""));
  EXPECT_FALSE(run.report.error);
  EXPECT_EQ(run.exit_code, programs::kSuccess);
  ASSERT_THAT(run.report.strikes, SizeIs(1));
  EXPECT_EQ(run.report.strikes[0].name, name);
  EXPECT_EQ(run.updates(), everywhere(kTrainingSteps));
  for (int rank = 0; rank < kFaultyRanks; ++rank)
    EXPECT_EQ(run.ranks[rank].bytes(), clean_run().ranks[rank].bytes()) << "rank " << rank;
}

double lost_seconds(const FaultyRun& run) { return run.seconds() - clean_run().seconds(); }

TEST(FaultEffectsTest, RunWithoutFaultsTrainsEqualReplicas) {
  EXPECT_THAT(clean_run().errors, Each(""));
  EXPECT_EQ(clean_run().updates(), everywhere(kTrainingSteps));
  for (const auto& rank : clean_run().ranks) EXPECT_EQ(rank.bytes(), clean_run().ranks[0].bytes());
  EXPECT_GT(clean_run().seconds(), kTrainingSteps * kCollectiveSeconds);
}

// --- ranks that end --------------------------------------------------------------------------------------------------

TEST(FaultEffectsTest, CrashBeforeACollectiveClosesTheConnectionsOfAllOthersThere) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected crash before a collective", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "rank_crash_before_collective", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(FaultEffectsTest, CrashIsTheEndEvenOfAProgramThatCatchesIt) {
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

TEST(FaultEffectsTest, CrashDuringACollectiveFailsThatVeryOneOnAllOthers) {
  const auto when = When{When::Unit::kCollective, gradients_of(7)};
  const auto run = run_with({{.kind = FaultKind::kRankCrashDuringCollective, .rank = kRank, .when = when}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected crash during a collective", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(7));
  expect_fault(run, "rank_crash_during_collective", {kRank});
  expect_call(run, "all_reduce", gradients_of(7));
}

TEST(FaultEffectsTest, CrashBeforeTheOptimizersStepLeavesTheOthersOneStepAhead) {
  const auto run = run_with({{.kind = FaultKind::kRankCrashBeforeOptimizerStep, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2,
                                      "InjectedFault: injected crash before the optimizer's step", kClosedBy2));
  EXPECT_EQ(run.updates(), (std::vector<int>{kStep + 1, kStep + 1, kStep, kStep + 1}));
  EXPECT_EQ(run.ranks[1].bytes(), run.ranks[0].bytes());
  EXPECT_EQ(run.ranks[3].bytes(), run.ranks[0].bytes());
  EXPECT_NE(run.ranks[kRank].bytes(), run.ranks[0].bytes());
  expect_fault(run, "rank_crash_before_optimizer_step", {kRank});
}

TEST(FaultEffectsTest, ExceptionInAHookClosesTheConnectionsOfAllOthersInThatGradientsCollective) {
  const auto run = run_with({{.kind = FaultKind::kHookException, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected exception in a backward hook", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "hook_exception", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(FaultEffectsTest, HangTimesOutTheOthersAtOnceAndIsDiagnosed) {
  const auto began = std::chrono::steady_clock::now();
  const auto run = run_with({{.kind = FaultKind::kRankHang, .rank = kRank, .when = kAtStep}});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::minutes(1)) << "of 30 until the timeout";
  EXPECT_THAT(run.errors,
              ElementsAre(kTimedOut, kTimedOut, "InjectedFault: injected hang, ended with the run", kTimedOut));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  EXPECT_GE(lost_seconds(run), 0) << "the timeout passes on the virtual clock";
  expect_fault(run, "rank_hang", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
  EXPECT_THAT(run.report.diagnosis->text, HasSubstr("missing: rank 2 hangs, after all_reduce"));
  std::vector<int> waiting;
  for (const auto& one : run.report.diagnosis->waiting) waiting.push_back(one.rank);
  EXPECT_THAT(waiting, ElementsAre(0, 1, 3));
}

TEST(FaultEffectsTest, RestartedRunEndsWithTheParametersOfOneThatWasNotInterrupted) {
  const auto run = run_with({{.kind = FaultKind::kRankRestart, .rank = kRank, .when = kAtStep}});
  expect_outlived(run, "rank_restart");
  // All that the first run did up to the sum of the gradients of step 5 is done again.
  EXPECT_GT(lost_seconds(run), gradients_of(kStep) * kCollectiveSeconds);
  EXPECT_LT(lost_seconds(run), clean_run().seconds());
}

// --- ranks that are late ---------------------------------------------------------------------------------------------

TEST(FaultEffectsTest, PauseCostsAllRanksItsTimeAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kRankPause, .rank = kRank, .when = kAtStep, .seconds = 0.5}});
  expect_outlived(run, "rank_pause");
  EXPECT_NEAR(lost_seconds(run), 0.5, kRounding);
  EXPECT_NEAR(run.report.times[0].straggler_wait, 0.5, kFewOperators);
  EXPECT_LT(run.report.times[kRank].straggler_wait, kFewOperators);
}

TEST(FaultEffectsTest, PauseBeyondTheTimeoutTimesOutTheOthersAndTheLateRankFindsThemGone) {
  const auto run = run_with({{.kind = FaultKind::kRankPause, .rank = kRank, .when = kAtStep, .seconds = 61}},
                            {.timeout = std::chrono::minutes(1)});
  const std::string timed_out = "GlooError: Timed out waiting 60000ms for recv operation to complete";
  EXPECT_THAT(run.errors,
              ElementsAre(timed_out, timed_out, "GlooError: Connection closed by peer [rank 3]", timed_out));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "rank_pause", {kRank});
}

TEST(FaultEffectsTest, SlowRankMakesAllRanksWaitForItAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kSlowRank, .rank = kRank, .factor = 4}});
  expect_outlived(run, "slow_rank");
  EXPECT_NEAR(lost_seconds(run), 3 * clean_run().report.times[kRank].compute, kFewOperators);
  EXPECT_NEAR(run.report.times[kRank].compute, 4 * clean_run().report.times[kRank].compute, kFewOperators);
  EXPECT_NEAR(run.report.times[0].straggler_wait, lost_seconds(run), 2 * kFewOperators);
  EXPECT_LT(run.report.times[kRank].straggler_wait, kFewOperators);
}

TEST(FaultEffectsTest, JitterCostsAtMostTwiceItsSecondsAStepAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kJitter, .seconds = 0.01}});
  expect_outlived(run, "jitter");
  EXPECT_GT(lost_seconds(run), kTrainingSteps * 0.01) << "the slowest of four is later than their mean";
  EXPECT_LT(lost_seconds(run), kTrainingSteps * 0.02);
}

// --- the network -----------------------------------------------------------------------------------------------------

TEST(FaultEffectsTest, DelayedMessagesHoldUpAllRanksAndChangeNoBit) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = Link{2, 1}, .seconds = 0.05, .probability = 1}});
  expect_outlived(run, "message_delay");
  // Every sum of gradients crosses the link, each in its turn.
  EXPECT_GE(lost_seconds(run), kTrainingSteps * 0.05 - kRounding);
  EXPECT_NEAR(run.report.times[0].straggler_wait, lost_seconds(run), kFewOperators);
}

TEST(FaultEffectsTest, DelaysOfOtherLinksCostTheRingNothing) {
  const auto run =
      run_with({{.kind = FaultKind::kMessageDelay, .link = Link{0, 2}, .seconds = 0.05, .probability = 1}});
  EXPECT_LT(lost_seconds(run), kTrainingSteps * 0.05);
}

TEST(FaultEffectsTest, LostMessageTimesOutItsReceiverAndTheOthersFindThatRankGone) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kMessageLoss, .link = Link{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, kTimedOut, kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "message_loss", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(FaultEffectsTest, ResetConnectionIsSeenByBothItsEndsAndTheOthersFindThemGone) {
  const auto when = When{When::Unit::kCollective, gradients_of(kStep)};
  const auto run = run_with({{.kind = FaultKind::kConnectionReset, .link = Link{3, 2}, .when = when}});
  EXPECT_THAT(run.errors, ElementsAre(kClosedBy2, kClosedBy2, "GlooError: Connection reset by peer [rank 3]",
                                      "GlooError: Connection reset by peer [rank 2]"));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "connection_reset", {2, 3});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(FaultEffectsTest, PartitionTimesOutTheRanksThatWaitAcrossTheCut) {
  const auto run = run_with({{.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtStep}});
  // In the ring each rank receives from the one above it: 1 from 2, and 3 from 0.
  const std::string closed_by_1 = "GlooError: Connection closed by peer [rank 1]";
  EXPECT_THAT(run.errors, ElementsAre(closed_by_1, kTimedOut, closed_by_1, kTimedOut));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "partition", {0, 1});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

TEST(FaultEffectsTest, OneWayPartitionCutsOffTheOtherSideOnly) {
  const auto run =
      run_with({{.kind = FaultKind::kPartition, .ranks = std::vector{0, 1}, .when = kAtStep, .one_way = true}});
  const std::string closed_by_3 = "GlooError: Connection closed by peer [rank 3]";
  EXPECT_THAT(run.errors, ElementsAre(closed_by_3, closed_by_3, closed_by_3, kTimedOut));
}

TEST(FaultEffectsTest, SlowLinkHoldsUpAllRanksAndChangesNoBit) {
  const auto slower = [](double factor) {
    return run_with({{.kind = FaultKind::kSlowLink, .link = Link{2, 1}, .factor = factor}});
  };
  const auto run = slower(1000);
  expect_outlived(run, "slow_link");
  EXPECT_GT(lost_seconds(run), 0);
  EXPECT_NEAR(lost_seconds(slower(1999)), 2 * lost_seconds(run), kRounding);
}

TEST(FaultEffectsTest, SlowStoreDelaysTheStartAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kStoreSlow, .seconds = 0.05}});
  expect_outlived(run, "store_slow");
  EXPECT_NEAR(lost_seconds(run), 0.05, kRounding);
}

TEST(FaultEffectsTest, StoreThatIsAwayIsAnErrorOfEveryRankBeforeItTrains) {
  const auto run = run_with({{.kind = FaultKind::kStoreSlow, .away = true}});
  EXPECT_THAT(
      run.errors,
      Each("InjectedFault: The client socket has timed out after 1800000ms while trying to connect to the store"));
  EXPECT_EQ(run.updates(), everywhere(0));
  expect_fault(run, "store_slow", {});
}

TEST(FaultEffectsTest, WhatComesAfterTheTimeoutHasNotCome) {
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

// --- numbers ---------------------------------------------------------------------------------------------------------

TEST(FaultEffectsTest, FlippedBitIsNamedByTheVoteOfTheReplicas) {
  constexpr std::int64_t kHighestExponentBit = 30;
  const auto run =
      run_with({{.kind = FaultKind::kBitFlip, .rank = kRank, .when = kAtStep, .bit = kHighestExponentBit}});
  EXPECT_THAT(
      run.errors,
      Each(AllOf(StartsWith(
          "DiagnosedError: optimizer_step #5: the replicas' parameters differ; rank 2 has other bits than the rest"))));
  expect_fault(run, "bit_flip", {kRank});
  EXPECT_NE(run.ranks[kRank].bytes(), run.ranks[0].bytes());
}

TEST(FaultEffectsTest, BitThatTheUpdateRoundsAwayChangesNothing) {
  // The lowest bit of a gradient of about 0.1, times the learning rate, is less than half a bit of a parameter of about
  // 0.1.
  const auto run = run_with({{.kind = FaultKind::kBitFlip, .rank = kRank, .when = kAtStep, .bit = 0}});
  expect_outlived(run, "bit_flip");
}

TEST(FaultEffectsTest, WrongCallOfEachSortIsADesyncThatNamesTheRank) {
  const std::string right = "all_reduce(sum, float32 [";
  const std::vector<std::pair<WrongCall, std::string>> sorts{
      {WrongCall::kOp, "rank 2: all_gather"},
      {WrongCall::kSize, "rank 2: " + right},
      {WrongCall::kDtype, "rank 2: all_reduce(sum, float64"},
      {WrongCall::kOrder, "rank 2: barrier"},
      {WrongCall::kReduceOp, "rank 2: all_reduce(max"},
      {WrongCall::kShape, "rank 2: all_reduce(sum, float32 [1, "}};
  for (const auto& [what, call] : sorts) {
    const auto run = run_with({{.kind = FaultKind::kWrongCall, .rank = kRank, .when = kAtStep, .what = what}});
    EXPECT_THAT(run.errors,
                Each(AllOf(StartsWith("DiagnosedError: "), HasSubstr("ranks 0-1, 3: " + right), HasSubstr(call))));
    EXPECT_EQ(run.updates(), everywhere(kStep)) << "nothing is summed";
    expect_fault(run, "wrong_call", {kRank});
    expect_call(run, "all_reduce", gradients_of(kStep));
    ASSERT_TRUE(run.report.diagnosis->first_difference);
    EXPECT_THAT(run.report.diagnosis->first_difference->sides, SizeIs(2));
  }
}

bool is_finite(const FaultyRun& run, int rank) {
  const auto& parameters = run.ranks[rank].parameters;
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const auto& parameter) { return parameter.isfinite().all().template item<bool>(); });
}

TEST(FaultEffectsTest, NanGradientReachesTheParametersOfEveryRankAndNobodySeesAnError) {
  for (const auto value : {BadValue::kNan, BadValue::kInf}) {
    const auto run = run_with({{.kind = FaultKind::kNanGradient, .rank = kRank, .when = kAtStep, .value = value}});
    EXPECT_THAT(run.errors, Each(""));
    EXPECT_EQ(run.exit_code, programs::kSuccess);
    EXPECT_EQ(run.updates(), everywhere(kTrainingSteps));
    for (int rank = 0; rank < kFaultyRanks; ++rank) {
      EXPECT_FALSE(is_finite(run, rank)) << "rank " << rank;
      EXPECT_EQ(run.ranks[rank].bytes(), run.ranks[0].bytes());
    }
    ASSERT_THAT(run.report.strikes, SizeIs(1));
    EXPECT_EQ(run.report.strikes[0].name, "nan_gradient");
  }
}

// --- files -----------------------------------------------------------------------------------------------------------

class FileFaultEffectsTest : public ::testing::Test {
 protected:
  /// Every rank saves its number of updates after each.
  FaultyRun run(const Fault& fault) {
    return run_with({fault}, {.places = {.after_update = [this](RankContext& rank, int step) {
                                write_atomically(*rank.files, file_of(rank.rank), std::to_string(step));
                                ++num_saved_[rank.rank];
                              }}});
  }
  [[nodiscard]] std::string file_of(int rank) const { return folder_.path("rank" + std::to_string(rank)); }
  [[nodiscard]] std::string saved(int rank) const { return PosixFiles().read(file_of(rank)); }

  TemporaryFolder folder_;
  std::vector<int> num_saved_ = std::vector<int>(kFaultyRanks);
};

TEST_F(FileFaultEffectsTest, TornWriteEndsItsRankAndLeavesTheCheckpointBefore) {
  PosixFiles disk;
  write_atomically(disk, file_of(kRank), "before");
  const auto run = this->run({.kind = FaultKind::kTornWrite, .rank = kRank, .bytes = 0});
  EXPECT_THAT(run.errors[kRank], AllOf(StartsWith("ProcessDied: torn_write on rank 2"),
                                       HasSubstr("rank2.tmp; 0 bytes of it reached the disk")));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(run.errors[rank], kClosedBy2);
  EXPECT_EQ(run.updates(), everywhere(1));
  EXPECT_EQ(saved(kRank), "before");
  EXPECT_EQ(saved(0), "0");
  EXPECT_THAT(folder_.files(), ElementsAre("rank0", "rank1", "rank2", "rank2.tmp", "rank3"))
      << "nobody tidies up after a process that died";
  expect_fault(run, "torn_write", {kRank});
}

TEST_F(FileFaultEffectsTest, FullDiskIsAnErrorOfTheSaveThatLeavesTheCheckpointBefore) {
  const auto run = this->run({.kind = FaultKind::kDiskFull, .rank = kRank, .after_bytes = 3});  // a byte a save
  EXPECT_THAT(run.errors[kRank],
              AllOf(StartsWith("FileError: "), HasSubstr("rank2"), HasSubstr("No space left on device")));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(run.errors[rank], kClosedBy2);
  EXPECT_EQ(run.updates(), everywhere(4));
  EXPECT_EQ(saved(kRank), "2");
  EXPECT_EQ(saved(0), "3");
  EXPECT_THAT(folder_.files(), ElementsAre("rank0", "rank1", "rank2", "rank3")) << "no temporary file is left";
  expect_fault(run, "disk_full", {kRank});
}

TEST_F(FileFaultEffectsTest, RunThatSavesNothingSeesNothing) {
  for (const auto& fault : {Fault{.kind = FaultKind::kTornWrite, .rank = kRank},
                            Fault{.kind = FaultKind::kDiskFull, .rank = kRank, .after_bytes = 0}}) {
    const auto run = run_with({fault});
    EXPECT_THAT(run.errors, Each(""));
    EXPECT_THAT(run.report.strikes, IsEmpty());
  }
}

// A program that withstands the failure of a collective may use its tensors again.
TEST(FaultEffectsTest, TensorsOfACollectiveThatFailedAreFreeAgain) {
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

// Its sums over ranks in the backward pass are no gradients of parameters.
TEST(FaultEffectsTest, AFlippedBitStrikesGradientsBesideSyncBatchNorm) {
  const auto run = run_program(
      {{.kind = FaultKind::kBitFlip, .rank = 2, .when = When{When::Unit::kStep, 1}, .bit = 30}}, [](RankContext& rank) {
        Accelerator accelerator({}, rank);
        torch::manual_seed(1);
        torch::nn::Sequential net(torch::nn::Linear(3, 4), SyncBatchNorm(4), torch::nn::Linear(4, 1));
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int step = 0; step < 3; ++step) {
          accelerator.backward(model(at::ones({2, 3}) * static_cast<double>(rank.rank + step)).square().sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->fault, "bit_flip");
  EXPECT_EQ(run.report.diagnosis->ranks, std::vector<int>{2});
}

}  // namespace
}  // namespace accel::testing
