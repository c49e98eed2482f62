// Tests of ReduceLROnPlateau, which lowers the rate when a metric no longer improves. The sequences of metrics are
// short enough to follow by hand and match PyTorch's rules.
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

// The rate after each of these metrics.
std::vector<double> rates_after(ReduceLROnPlateau& scheduler, const std::vector<double>& metrics) {
  std::vector<double> rates;
  for (const auto metric : metrics) {
    scheduler.step(metric);
    rates.push_back(scheduler.get_last_lr().front());
  }
  return rates;
}

// With a patience of 1, the second epoch without improvement lowers the rate.
TEST(ReduceLROnPlateauTest, TheRateFallsWhenPatienceIsOver) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1});
  EXPECT_THAT(rates_after(scheduler, {1.0, 1.0, 1.0, 0.5, 0.5, 0.5}), ElementsAre(8, 8, 4, 4, 4, 2));
}

// During the cooldown of two epochs, bad metrics do not count.
TEST(ReduceLROnPlateauTest, EpochsOfTheCooldownDoNotCount) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0, .cooldown = 2});
  EXPECT_THAT(rates_after(scheduler, {1, 1, 1, 1, 1}), ElementsAre(8, 4, 4, 4, 2));
}

// An improvement of less than the absolute threshold of 0.5 counts as none.
TEST(ReduceLROnPlateauTest, ModeMaxExpectsAMetricThatRises) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer,
                              {.mode = "max", .factor = 0.5, .patience = 0, .threshold = 0.5, .threshold_mode = "abs"});
  EXPECT_THAT(rates_after(scheduler, {1, 2, 2.5, 3}), ElementsAre(8, 8, 4, 4));
}

// Both groups would reach 2; the second must stop at its minimum.
TEST(ReduceLROnPlateauTest, EachGroupHasItsLowestRate) {
  auto optimizer = sgd({8.0, 8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0, .min_lr = {1.0, 6.0}});
  rates_after(scheduler, {1, 1, 1});
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(2, 6));
}

// Unlike the other schedules, this one changes the current rates and has no base rates, so a new group is no
// problem.
TEST(ReduceLROnPlateauTest, AGroupThatIsAddedLaterIsReducedToo) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0});
  optimizer.add_param_group({{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(2.0)});
  rates_after(scheduler, {1, 1});
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(4, 1));
}

TEST(ReduceLROnPlateauTest, WrongArgumentsAreArgumentErrors) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(ReduceLROnPlateau(optimizer, {.mode = "least"}), ArgumentError);
  EXPECT_THROW(ReduceLROnPlateau(optimizer, {.factor = 1.0}), ArgumentError);
  EXPECT_THROW(ReduceLROnPlateau(optimizer, {.threshold_mode = "percent"}), ArgumentError);
  EXPECT_THROW(ReduceLROnPlateau(optimizer, {.min_lr = {0.1, 0.2}}), ArgumentError);
}

// The base class has step() without a metric. Calling it by mistake must not pass unnoticed.
TEST(ReduceLROnPlateauTest, AStepWithoutAMetricIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer);
  EXPECT_THROW(static_cast<LRScheduler&>(scheduler).step(), ArgumentError);
}

}  // namespace
}  // namespace accel::testing
