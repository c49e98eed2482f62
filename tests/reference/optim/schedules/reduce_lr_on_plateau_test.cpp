#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

std::vector<double> rates_after(ReduceLROnPlateau& scheduler, const std::vector<double>& metrics) {
  std::vector<double> rates;
  for (const auto metric : metrics) {
    scheduler.step(metric);
    rates.push_back(scheduler.get_last_lr().front());
  }
  return rates;
}

TEST(ReduceLROnPlateauTest, TheRateFallsWhenPatienceIsOver) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1});
  EXPECT_THAT(rates_after(scheduler, {1.0, 1.0, 1.0, 0.5, 0.5, 0.5}), ElementsAre(8, 8, 4, 4, 4, 2));
}

TEST(ReduceLROnPlateauTest, EpochsOfTheCooldownDoNotCount) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0, .cooldown = 2});
  EXPECT_THAT(rates_after(scheduler, {1, 1, 1, 1, 1}), ElementsAre(8, 4, 4, 4, 2));
}

TEST(ReduceLROnPlateauTest, MaxWantsAMetricThatRises) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer,
                              {.mode = "max", .factor = 0.5, .patience = 0, .threshold = 0.5, .threshold_mode = "abs"});
  EXPECT_THAT(rates_after(scheduler, {1, 2, 2.5, 3}), ElementsAre(8, 8, 4, 4));
}

TEST(ReduceLROnPlateauTest, EachGroupHasItsLowestRate) {
  auto optimizer = sgd({8.0, 8.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0, .min_lr = {1.0, 6.0}});
  rates_after(scheduler, {1, 1, 1});
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(2, 6));
}

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

TEST(ReduceLROnPlateauTest, AStepWithoutAMetricIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  ReduceLROnPlateau scheduler(optimizer);
  EXPECT_THROW(static_cast<LRScheduler&>(scheduler).step(), ArgumentError);
}

}  // namespace
}  // namespace accel::testing
