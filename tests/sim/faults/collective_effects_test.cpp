// What every rank observes when one rank's part in a collective fails: its call, its tensors, its hook. Real Gloo
// was the reference for the messages.
#include <gmock/gmock.h>

#include <algorithm>

#include "reference/accelerator/accelerator.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
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
using ::testing::StartsWith;

// The ranks have already begun to exchange data, unlike in a crash before the call.
TEST(CollectiveEffectsTest, CrashDuringACollectiveFailsThatCollectiveOnAllOthers) {
  const auto when = When{When::Unit::kCollective, gradients_of(7)};
  const auto run = run_with({{.kind = FaultKind::kRankCrashDuringCollective, .rank = kRank, .when = when}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected crash during a collective", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(7));
  expect_fault(run, "rank_crash_during_collective", {kRank});
  expect_call(run, "all_reduce", gradients_of(7));
}

// The exception leaves the backward pass in the middle of the buckets.
TEST(CollectiveEffectsTest, ExceptionInAHookFailsThatGradientsCollective) {
  const auto run = run_with({{.kind = FaultKind::kHookException, .rank = kRank, .when = kAtStep}});
  EXPECT_THAT(run.errors,
              ElementsAre(kClosedBy2, kClosedBy2, "InjectedFault: injected exception in a backward hook", kClosedBy2));
  EXPECT_EQ(run.updates(), everywhere(kStep));
  expect_fault(run, "hook_exception", {kRank});
  expect_call(run, "all_reduce", gradients_of(kStep));
}

// With data parallelism all replicas must be equal, so the majority shows which rank is wrong.
TEST(CollectiveEffectsTest, FlippedBitIsNamedByTheVoteOfTheReplicas) {
  // Bit 30 is the highest bit of the exponent, so the gradient changes by orders of magnitude.
  constexpr std::int64_t kHighestExponentBit = 30;
  const auto run =
      run_with({{.kind = FaultKind::kBitFlip, .rank = kRank, .when = kAtStep, .bit = kHighestExponentBit}});
  // No error occurs in the collective; only the comparison of replicas in the optimizer step can notice the bit.
  EXPECT_THAT(
      run.errors,
      Each(AllOf(StartsWith(
          "DiagnosedError: optimizer_step #5: the replicas' parameters differ; rank 2 differs from the rest"))));
  expect_fault(run, "bit_flip", {kRank});
  EXPECT_NE(run.ranks[kRank].bytes(), run.ranks[0].bytes());
}

TEST(CollectiveEffectsTest, ABitThatTheUpdateRoundsAwayChangesNothing) {
  // The lowest bit of a gradient of about 0.1, times the learning rate, is less than half a bit of a parameter of
  // about 0.1.
  const auto run = run_with({{.kind = FaultKind::kBitFlip, .rank = kRank, .when = kAtStep, .bit = 0}});
  expect_outlived(run, "bit_flip");
}

// Gloo would hang, abort or return wrong numbers, depending on the kind of mistake.
TEST(CollectiveEffectsTest, WrongCallOfEachSortIsADesyncThatNamesTheRank) {
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

// A NaN spreads equally to all replicas, so no comparison can find it. It must still be listed among the faults
// that occurred.
TEST(CollectiveEffectsTest, NanGradientReachesEveryRankWithoutAnError) {
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

// Its sums over ranks in the backward pass are statistics and not gradients of parameters, so the fault must skip
// them.
TEST(CollectiveEffectsTest, AFlippedBitAffectsGradientsDespiteSyncBatchNorm) {
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
