// Cyclic schedules (OneCycleLR, CyclicLR), which also change momentum.
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/cyclic_lr.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "reference/optim/state_dict/param_group_options.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The momentum of the first group, whatever the optimizer calls it.
double momentum_of(torch::optim::Optimizer& optimizer) {
  return optim::momentum_of(optimizer.param_groups()[0].options());
}

// A high rate with a high momentum would diverge, so one falls while the other rises.
TEST(OneCycleLRTest, TheRateRisesAndFallsAndTheMomentumIsOpposite) {
  auto optimizer = sgd({1.0});
  OneCycleLR scheduler(
      optimizer,
      {.max_lr = 8.0, .total_steps = 10, .anneal_strategy = "linear", .base_momentum = 0.5, .max_momentum = 1.0});
  EXPECT_EQ(rate_of(optimizer), 8.0 / 25);
  EXPECT_EQ(momentum_of(optimizer), 1.0);
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(rate_of(optimizer), 8.0);
  EXPECT_EQ(momentum_of(optimizer), 0.5);
  for (int step = 3; step <= 9; ++step) scheduler.step();
  EXPECT_NEAR(rate_of(optimizer), 8.0 / 25 / 1e4, 2e-15);  // (end - start) * 1 + start is rounded as 8 is
  EXPECT_EQ(momentum_of(optimizer), 1.0);
}

// In RAdam the momentum is the first beta.
TEST(OneCycleLRTest, OurOptimizersCycleTheirMomentumAsWell) {
  const auto weight = [] { return std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()}; };
  optim::RAdam radam(weight(), {.lr = 1.0});
  OneCycleLR scheduler(
      radam,
      {.max_lr = 8.0, .total_steps = 10, .anneal_strategy = "linear", .base_momentum = 0.5, .max_momentum = 0.75});
  EXPECT_EQ(momentum_of(radam), 0.75);
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(momentum_of(radam), 0.5);
  optim::Adagrad adagrad(weight(), {.lr = 1.0});
  EXPECT_THROW(OneCycleLR(adagrad, {.max_lr = 8.0, .total_steps = 10}), ArgumentError);
}

// As in PyTorch: the rate after the end is not defined.
TEST(OneCycleLRTest, AStepBeyondTheTotalIsAnArgumentError) {
  auto optimizer = sgd({1.0});
  OneCycleLR scheduler(optimizer, {.max_lr = 1.0, .epochs = 2, .steps_per_epoch = 5});
  EXPECT_EQ(scheduler.total_steps(), 10);
  for (int step = 1; step <= 10; ++step) scheduler.step();
  EXPECT_THAT(message_thrown<ArgumentError>([&] { scheduler.step(); }), HasSubstr("step 11 of a schedule of 10 steps"));
}

// For Adam, torch cycles the first beta in place of a momentum.
TEST(OneCycleLRTest, AdamsFirstBetaIsItsMomentum) {
  torch::optim::AdamW optimizer({torch::zeros({1}).requires_grad_()},
                                torch::optim::AdamWOptions(1.0).betas({0.9, 0.75}));
  const OneCycleLR scheduler(optimizer, {.max_lr = 1.0, .total_steps = 10});
  const auto betas = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).betas();
  EXPECT_EQ(betas, std::make_tuple(0.95, 0.75));
  EXPECT_EQ(scheduler.state_dict().at("use_beta1"), Value(true));
}

// cycle_momentum is on by default, so the message names the option.
TEST(OneCycleLRTest, AnOptimizerWithoutMomentumMustNotCycleIt) {
  torch::optim::Adagrad optimizer({torch::zeros({1}).requires_grad_()});
  EXPECT_THAT(message_thrown<ArgumentError>([&] { OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 10}); }),
              HasSubstr("cycle_momentum"));
  EXPECT_THROW(CyclicLR(optimizer, {.base_lr = 0.1, .max_lr = 1.0}), ArgumentError);
  EXPECT_NO_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 10, .cycle_momentum = false}));
}

// The length may be given in two ways, as a total or as epochs times steps, but one of them must be complete.
TEST(OneCycleLRTest, WrongArgumentsAreArgumentErrors) {
  auto optimizer = sgd({1.0});
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .epochs = 3}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 0}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 10, .pct_start = 1.5}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 10, .anneal_strategy = "cosine"}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 10, .div_factor = 0.0}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = {1.0, 2.0}, .total_steps = 10}), ArgumentError);
  EXPECT_THROW(OneCycleLR(optimizer, {.total_steps = 10}), ArgumentError) << "max_lr is missing";
  // Python divides by the length of the first phase, which is 0 here.
  EXPECT_THROW(OneCycleLR(optimizer, {.max_lr = 1.0, .total_steps = 2, .pct_start = 0.5}), ArgumentError);
}

// Two steps up and, by default, as many down.
TEST(CyclicLRTest, TheRateCyclesBetweenBaseAndMax) {
  auto optimizer = sgd({1.0});
  CyclicLR scheduler(optimizer, {.base_lr = 2.0, .max_lr = 4.0, .step_size_up = 2, .cycle_momentum = false});
  EXPECT_THAT(rates_over(scheduler, 5), ElementsAre(2, 3, 4, 3, 2, 3));
}

// "triangular2" halves the height after each cycle.
TEST(CyclicLRTest, TheHeightOfACycleIsScaled) {
  auto optimizer = sgd({1.0});
  CyclicLR halves(optimizer,
                  {.base_lr = 2.0, .max_lr = 4.0, .step_size_up = 1, .mode = "triangular2", .cycle_momentum = false});
  EXPECT_THAT(rates_over(halves, 5), ElementsAre(2, 4, 2, 3, 2, 2.5));
  CyclicLR own(optimizer, {.base_lr = 2.0,
                           .max_lr = 4.0,
                           .step_size_up = 1,
                           .scale_fn = [](double iteration) { return iteration; },
                           .scale_mode = "iterations",
                           .cycle_momentum = false});
  EXPECT_THAT(rates_over(own, 3), ElementsAre(2, 4, 2, 8));
}

// Lists of rates must have one entry for each parameter group.
TEST(CyclicLRTest, WrongArgumentsAreArgumentErrors) {
  auto optimizer = sgd({1.0});
  EXPECT_THROW(CyclicLR(optimizer, {.base_lr = 0.1, .max_lr = 1.0, .mode = "square"}), ArgumentError);
  EXPECT_THROW(CyclicLR(optimizer, {.base_lr = 0.1, .max_lr = 1.0, .step_size_up = 0}), ArgumentError);
  EXPECT_THROW(CyclicLR(optimizer, {.base_lr = {0.1, 0.2}, .max_lr = 1.0}), ArgumentError);
  EXPECT_THROW(CyclicLR(optimizer, {.base_lr = 0.1, .max_lr = {1.0, 2.0}}), ArgumentError);
}

}  // namespace
}  // namespace accel::testing
