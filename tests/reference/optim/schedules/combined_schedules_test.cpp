// Schedules that combine others (SequentialLR, ChainedScheduler), as in torch/optim/lr_scheduler.py.
#include "reference/optim/schedules/combined_schedules.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The second part must not begin at the low rate of the first one.
TEST(SequentialLRTest, APartStartsFromTheInitialRateAtItsMilestone) {
  auto optimizer = sgd({8.0});
  SequentialLR scheduler(optimizer, {schedule<ConstantLR>(0.25, 100), schedule<ExponentialLR>(0.5)}, {2});
  EXPECT_THAT(rates_over(scheduler, 4), ElementsAre(2, 2, 8, 4, 2));
}

// The second part begins with its epoch 0, which is a milestone of it.
TEST(SequentialLRTest, AMilestoneAtTheStartOfAPartCounts) {
  auto optimizer = sgd({8.0});
  SequentialLR scheduler(optimizer,
                         {schedule<ConstantLR>(0.25, 100), schedule<MultiStepLR>(std::vector<int>{0, 1}, 0.5)}, {1});
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(2, 4, 2, 2));
}

// In torch the bounds are stored in the groups, so the second part's bounds replace those of the first.
TEST(SequentialLRTest, PartsThatCycleKeepTheirOwnBounds) {
  auto optimizer = sgd({8.0});
  const auto cycle = [](double most) {
    return schedule<OneCycleLR>(
        OneCycleLROptions{.max_lr = most, .total_steps = 10, .cycle_momentum = false, .div_factor = 4.0});
  };
  SequentialLR scheduler(optimizer, {cycle(1.0), cycle(2.0)}, {5});
  EXPECT_EQ(scheduler.get_last_lr().front(), 0.25);
}

// Constructing a schedule performs its first step, which must be undone for parts that start later.
TEST(SequentialLRTest, MakingThePartsDoesNotChangeTheRate) {
  auto optimizer = sgd({8.0});
  const SequentialLR scheduler(optimizer, {schedule<StepLR>(1), schedule<ConstantLR>(0.5), schedule<ConstantLR>(0.5)},
                               {5, 9});
  EXPECT_EQ(rate_of(optimizer), 8.0);
  EXPECT_EQ(scheduler.schedulers()[1]->last_epoch(), -1);
}

// No parts, too few or unordered milestones, parts of another optimizer, and a part that needs a metric.
TEST(SequentialLRTest, WrongPartsAreArgumentErrors) {
  auto optimizer = sgd({8.0}), other = sgd({8.0});
  const auto part = schedule<StepLR>(1);
  EXPECT_THROW(SequentialLR(optimizer, {}, {}), ArgumentError);
  EXPECT_THROW(SequentialLR(optimizer, {part, part}, {}), ArgumentError);
  EXPECT_THROW(SequentialLR(optimizer, {part, part, part}, {5, 3}), ArgumentError);
  EXPECT_THROW(SequentialLR(optimizer, {schedule<ReduceLROnPlateau>(ReduceLROnPlateauOptions{})}, {}), ArgumentError);
  EXPECT_THROW(
      SequentialLR(optimizer, {[&](const ScheduledOptimizer&) { return std::make_unique<StepLR>(other, 1); }}, {}),
      ArgumentError);
  EXPECT_THROW(SequentialLR(optimizer, {ScheduleFactory()}, {}), ArgumentError);
}

// Python raises NotImplementedError when it reaches the milestone; here the construction fails.
TEST(SequentialLRTest, ACombinedScheduleCannotStartAtAMilestone) {
  auto optimizer = sgd({8.0});
  const auto chained = schedule<ChainedScheduler>(std::vector<ScheduleFactory>{schedule<StepLR>(1)});
  EXPECT_NO_THROW(SequentialLR(optimizer, {chained, schedule<StepLR>(1)}, {3}));
  EXPECT_THAT(message_thrown<ArgumentError>([&] {
                SequentialLR(optimizer, {schedule<StepLR>(1), chained}, {3});
              }),
              HasSubstr("schedulers[1]"));
}

// All parts step at the same time, unlike in a SequentialLR.
TEST(ChainedSchedulerTest, FactorsMultiply) {
  auto optimizer = sgd({8.0});
  ChainedScheduler scheduler(optimizer, {schedule<ConstantLR>(0.5, 2), schedule<ExponentialLR>(0.5)});
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(4, 2, 2, 1));
  EXPECT_THROW(ChainedScheduler(optimizer, {}), ArgumentError);
}

// The state contains those of the parts, which have counts of their own. The save is after a milestone, inside the
// second part.
TEST(CombinedScheduleTest, AStateContinuesWhereItWasSaved) {
  auto optimizer = sgd({8.0}), other = sgd({8.0});
  const std::vector<ScheduleFactory> parts = {schedule<ConstantLR>(0.25, 100), schedule<ExponentialLR>(0.5)};
  SequentialLR scheduler(optimizer, parts, {2}), restored(other, parts, {2});
  for (int step = 0; step < 3; ++step) scheduler.step();
  restored.load_state_dict(scheduler.state_dict());
  set_rate(other, rate_of(optimizer));
  restored.step();
  EXPECT_THAT(restored.get_last_lr(), ElementsAre(2));
}

// The program has changed since the checkpoint was written.
TEST(CombinedScheduleTest, AStateOfOtherPartsIsACheckpointError) {
  auto optimizer = sgd({8.0});
  SequentialLR two(optimizer, {schedule<StepLR>(1), schedule<StepLR>(1)}, {2}),
      one(optimizer, {schedule<StepLR>(1)}, {});
  EXPECT_THAT(message_thrown<CheckpointError>([&] { two.load_state_dict(one.state_dict()); }),
              HasSubstr("_schedulers: expected a list of 2 states"));
}

// torch starts at the rate of the first part, 2, and continues from that.
TEST(SequentialLRTest, WithAMilestoneAtTheStartTheNextPartStarts) {
  auto optimizer = sgd({8.0});
  SequentialLR scheduler(optimizer, {schedule<ConstantLR>(0.25, 100), schedule<ExponentialLR>(0.5)}, {0});
  EXPECT_THAT(rates_over(scheduler, 3), ElementsAre(8, 4, 2, 1));
  auto other = sgd({8.0});
  SequentialLR third(
      other, {schedule<ConstantLR>(0.25, 100), schedule<ConstantLR>(0.5, 2), schedule<LinearLR>(0.25, 1.0, 3)}, {0, 0});
  EXPECT_THAT(rates_over(third, 4), ElementsAre(2, 4, 6, 8, 8));
  auto last = sgd({8.0});
  SequentialLR warmed(
      last, {schedule<ConstantLR>(0.25, 100), schedule<ConstantLR>(0.5, 100), schedule<ExponentialLR>(0.5)}, {0, 2});
  EXPECT_THAT(rates_over(warmed, 3), ElementsAre(4, 4, 8, 4));
}

TEST(SequentialLRTest, AStateOfOneThatStartedAtItsMilestoneContinues) {
  const auto make = [](auto& optimizer) {
    return SequentialLR(optimizer, {schedule<ConstantLR>(0.25, 100), schedule<ExponentialLR>(0.5)}, {0});
  };
  auto optimizer = sgd({8.0}), resumed = sgd({8.0});
  SequentialLR first = make(optimizer), second = make(resumed);
  first.step();
  second.load_state_dict(first.state_dict());
  resumed.param_groups().front().options().set_lr(rate_of(optimizer));
  EXPECT_THAT(rates_over(second, 2), ElementsAre(4, 2, 1));
}

}  // namespace
}  // namespace accel::testing
