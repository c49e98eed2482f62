// Decaying schedules of torch. Rates are compared exactly: the numbers are powers of two unless rounding is the
// subject.
#include "reference/optim/schedules/decay_schedules.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/cosine_schedules.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

// Two epochs at each rate. Rates that are powers of two are exact.
TEST(StepLRTest, TheRateFallsAfterEveryStepSizeEpochs) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  EXPECT_THAT(rates_over(scheduler, 6), ElementsAre(8, 8, 4, 4, 2, 2, 1));
}

// Python multiplies the current rate, so rounding accumulates: 0.1 * 0.1 * 0.1 is not 0.1^3.
TEST(StepLRTest, TheRateIsMultipliedStepByStep) {
  auto optimizer = sgd({0.1});
  StepLR scheduler(optimizer, /*step_size=*/1);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(0.1, 0.1 * 0.1, 0.1 * 0.1 * 0.1));
}

// Recursive schedules multiply whatever rate the group has, and users rely on that.
TEST(StepLRTest, ARateSetByTheUserIsTheOneThatDecays) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  set_rate(optimizer, 100);
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(50));
}

// It would divide by zero at the first step.
TEST(StepLRTest, AStepSizeOfZeroIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(StepLR(optimizer, /*step_size=*/0), ArgumentError);
}

// The milestones are also out of order, which Python accepts.
TEST(MultiStepLRTest, AMilestoneThatIsListedTwiceCountsTwice) {
  auto optimizer = sgd({8.0});
  MultiStepLR scheduler(optimizer, /*milestones=*/{2, 1, 2}, /*gamma=*/0.5);
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(8, 4, 1, 1));
}

// The keys of a Value are strings; in Python's file they are integers again.
TEST(MultiStepLRTest, TheStateHasTheMilestonesAsStrings) {
  auto optimizer = sgd({8.0});
  MultiStepLR scheduler(optimizer, /*milestones=*/{30, 80, 30});
  EXPECT_EQ(scheduler.state_dict().at("milestones"), Value(Value::Dict{{"30", 2}, {"80", 1}}));
}

// The factor is taken back exactly, so the rate is the initial one again.
TEST(ConstantLRTest, TheFactorEndsAtTotalIters) {
  auto optimizer = sgd({8.0});
  ConstantLR scheduler(optimizer, /*factor=*/0.5, /*total_iters=*/2);
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(4, 4, 8, 8));
}

// As in PyTorch: this schedule is for reducing the rate at the start.
TEST(ConstantLRTest, AFactorBeyondOneIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(ConstantLR(optimizer, 1.5), ArgumentError);
  EXPECT_THROW(ConstantLR(optimizer, -0.5), ArgumentError);
}

// Python divides 1 by the factor when the factor ends.
TEST(ConstantLRTest, AFactorOfZeroCannotBeUndone) {
  auto optimizer = sgd({8.0});
  ConstantLR scheduler(optimizer, /*factor=*/0.0, /*total_iters=*/1);
  EXPECT_THROW(scheduler.step(), ArgumentError);
}

// A warm-up: from half of the rate to all of it within two epochs.
TEST(LinearLRTest, TheFactorGoesFromStartToEnd) {
  auto optimizer = sgd({8.0});
  LinearLR scheduler(optimizer, /*start_factor=*/0.5, /*end_factor=*/1.0, /*total_iters=*/2);
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(4, 6, 8, 8));
}

// A start factor of 0 would divide by zero in the recursive formula.
TEST(LinearLRTest, FactorsBeyondOneAreArgumentErrors) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(LinearLR(optimizer, 0.0), ArgumentError);
  EXPECT_THROW(LinearLR(optimizer, 1.5), ArgumentError);
  EXPECT_THROW(LinearLR(optimizer, 0.5, -0.1), ArgumentError);
  EXPECT_THROW(LinearLR(optimizer, 0.5, 1.1), ArgumentError);
  EXPECT_EQ(rate_of(optimizer), 8.0) << "a schedule that was not made set a rate";
}

TEST(ExponentialLRTest, TheRateFallsEveryEpoch) {
  auto optimizer = sgd({8.0});
  ExponentialLR scheduler(optimizer, 0.5);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(8, 4, 2));
}

// Continuing the polynomial would give negative rates.
TEST(PolynomialLRTest, TheRateStaysConstantAfterTheEnd) {
  auto optimizer = sgd({8.0});
  PolynomialLR scheduler(optimizer, /*total_iters=*/2);
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(8, 4, 0, 0));
}

// Python's 0.0 ** -1 raises an exception; pow returns infinity.
TEST(PolynomialLRTest, ANegativePowerOfZeroIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  PolynomialLR scheduler(optimizer, /*total_iters=*/1, /*power=*/-1.0);
  EXPECT_THROW(scheduler.step(), ArgumentError);
}

// As in PyTorch, where the cosine simply continues.
TEST(CosineAnnealingLRTest, TheRateRisesAgainAfterTMax) {
  auto optimizer = sgd({8.0});
  CosineAnnealingLR scheduler(optimizer, /*T_max=*/2);
  const auto rates = rates_over(scheduler, 4);
  EXPECT_EQ(rates[2], 0.0);
  EXPECT_GT(rates[3], 3.9);
  EXPECT_GT(rates[4], 7.9);
  EXPECT_THROW(CosineAnnealingLR(optimizer, /*T_max=*/0), ArgumentError);
}

// Periods of 1, 2 and 4 epochs, so restarts at 0, 1, 3 and 7.
TEST(CosineAnnealingWarmRestartsTest, PeriodsGrowByTMult) {
  auto optimizer = sgd({8.0});
  CosineAnnealingWarmRestarts scheduler(optimizer, /*T_0=*/1, /*T_mult=*/2);
  const auto rates = rates_over(scheduler, 7);
  for (const int start : {0, 1, 3, 7}) EXPECT_EQ(rates[start], 8.0) << start;
  for (const int inside : {2, 4, 5, 6}) EXPECT_LT(rates[inside], 8.0) << inside;
}

TEST(CosineAnnealingWarmRestartsTest, PeriodsBelowOneAreArgumentErrors) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(CosineAnnealingWarmRestarts(optimizer, 0), ArgumentError);
  EXPECT_THROW(CosineAnnealingWarmRestarts(optimizer, 1, 0), ArgumentError);
}

// In torch the factor of the start remains for ever.
TEST(ConstantLRTest, NoEpochsHaveNoFactor) {
  auto optimizer = sgd({8.0});
  ConstantLR scheduler(optimizer, /*factor=*/0.5, /*total_iters=*/0);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(8, 8, 8));
}

TEST(LinearLRTest, NoEpochsHaveTheFactorOfTheEnd) {
  auto optimizer = sgd({8.0});
  LinearLR scheduler(optimizer, /*start_factor=*/0.25, /*end_factor=*/0.5, /*total_iters=*/0);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(4, 4, 4));
}

}  // namespace
}  // namespace accel::testing
