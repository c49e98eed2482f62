#include "reference/optim/lr_scheduler.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "reference/core/errors.hpp"

using testing::ElementsAre;

namespace accel {
namespace {

torch::optim::SGD sgd(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(rate));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(1.0));
}

std::vector<double> rates_over(LRScheduler& scheduler, int num_steps) {
  std::vector<double> rates = {scheduler.get_last_lr().front()};
  for (int step = 0; step < num_steps; ++step) {
    scheduler.step();
    rates.push_back(scheduler.get_last_lr().front());
  }
  return rates;
}

TEST(LambdaLRTest, TheRateIsTheInitialOneTimesTheFactorOfTheEpoch) {
  auto optimizer = sgd({0.5});
  LambdaLR scheduler(optimizer, [](int epoch) { return 1.0 - epoch / 4.0; });
  EXPECT_THAT(rates_over(scheduler, 4), ElementsAre(0.5, 0.375, 0.25, 0.125, 0.0));
  EXPECT_EQ(scheduler.last_epoch(), 4);
}

TEST(LambdaLRTest, TheFactorOfEpochZeroHoldsFromTheStart) {
  auto optimizer = sgd({0.5});
  LambdaLR scheduler(optimizer, [](int epoch) { return (epoch + 1) / 4.0; });
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(scheduler.last_epoch(), 0);
}

TEST(LambdaLRTest, EachGroupKeepsItsOwnInitialRate) {
  auto optimizer = sgd({1.0, 0.25});
  LambdaLR scheduler(optimizer, [](int epoch) { return epoch == 0 ? 1.0 : 0.5; });
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5, 0.125));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.125);
}

TEST(StepLRTest, TheRateFallsAfterEveryStepSizeEpochs) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  EXPECT_THAT(rates_over(scheduler, 6), ElementsAre(8, 8, 4, 4, 2, 2, 1));
}

// Python multiplies the current rate, so that rounding adds up: 0.1 * 0.1 * 0.1 is not 0.1^3.
TEST(StepLRTest, TheRateIsMultipliedStepByStep) {
  auto optimizer = sgd({0.1});
  StepLR scheduler(optimizer, /*step_size=*/1);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(0.1, 0.1 * 0.1, 0.1 * 0.1 * 0.1));
}

TEST(StepLRTest, ARateThatTheUserSetsIsTheOneThatFalls) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  optimizer.param_groups()[0].options().set_lr(100);
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(50));
}

TEST(StepLRTest, AStepSizeOfZeroIsAnArgumentError) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(StepLR(optimizer, /*step_size=*/0), ArgumentError);
}

}  // namespace
}  // namespace accel
