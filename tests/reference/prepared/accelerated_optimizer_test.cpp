#include "reference/prepared/accelerated_optimizer.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AcceleratedOptimizerTest : public ::testing::Test {
 protected:
  AcceleratedOptimizerTest() {
    context_.world_size = 2;
    weight_.mutable_grad() = torch::full({1}, 2.0);
  }
  AcceleratedScheduler accelerated(SchedulerOptions options) {
    return {scheduler_, {optimizer_}, context_, path_, options};
  }
  void guard(GradientGuard guard) {
    *path_ = GradientPipeline(context_, {.gradient_guard = guard}, /*ranks_per_batch=*/1);
  }

  RankContext context_;
  at::Tensor weight_ = torch::full({1}, 10.0).requires_grad_();
  torch::optim::SGD sgd_ = torch::optim::SGD({weight_}, /*lr=*/1.0);
  LambdaLR scheduler_ = LambdaLR(sgd_, [](int epoch) { return 1.0 - epoch / 8.0; });
  std::shared_ptr<GradientPipeline> path_ =
      std::make_shared<GradientPipeline>(context_, AcceleratorOptions(), /*ranks_per_batch=*/1);
  AcceleratedOptimizer optimizer_ = AcceleratedOptimizer(sgd_, context_, path_);
};

TEST_F(AcceleratedOptimizerTest, AStepActsOnlyWhenGradientsAreSynchronised) {
  context_.gradient_state.sync_gradients = false;
  optimizer_.step();
  EXPECT_EQ(weight_.item<float>(), 10);
  context_.gradient_state.sync_gradients = true;
  optimizer_.step();
  EXPECT_EQ(weight_.item<float>(), 8);
  EXPECT_FALSE(optimizer_.step_was_skipped());
}

TEST_F(AcceleratedOptimizerTest, GradientsAreKeptUntilTheyWereSynchronised) {
  context_.gradient_state.sync_gradients = false;
  optimizer_.zero_grad();
  EXPECT_TRUE(weight_.grad().defined());
  context_.gradient_state.sync_gradients = true;
  optimizer_.zero_grad();
  EXPECT_FALSE(weight_.grad().defined());
}

TEST_F(AcceleratedOptimizerTest, GradientsMayBeZeroedInPlace) {
  optimizer_.zero_grad(/*set_to_none=*/false);
  ASSERT_TRUE(weight_.grad().defined());
  EXPECT_EQ(weight_.grad().item<float>(), 0);
}

TEST_F(AcceleratedOptimizerTest, TheRateOfAGroupThatIsNotThereIsAnArgumentError) {
  EXPECT_EQ(optimizer_.lr(), 1.0);
  EXPECT_THROW(static_cast<void>(optimizer_.lr(1)), ArgumentError);
}

TEST_F(AcceleratedOptimizerTest, AScheduleStepsOnceForEachRank) {
  auto scheduler = accelerated({});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.75));
}

TEST_F(AcceleratedOptimizerTest, AScheduleStepsOnceIfBatchesAreSplit) {
  auto scheduler = accelerated({.split_batches = true});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.875));
}

TEST_F(AcceleratedOptimizerTest, AScheduleWaitsForTheOptimizer) {
  context_.gradient_state.sync_gradients = false;
  auto scheduler = accelerated({});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
}

TEST_F(AcceleratedOptimizerTest, AScheduleOnItsOwnStepsOnceAtEachCall) {
  context_.gradient_state.sync_gradients = false;
  auto scheduler = accelerated({.step_with_optimizer = false});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.875));
}

TEST_F(AcceleratedOptimizerTest, AMetricStepsAScheduleThatFollowsIt) {
  ReduceLROnPlateau plateau(sgd_, {.factor = 0.5, .patience = 1, .threshold = 0.0});
  AcceleratedScheduler scheduler(plateau, {optimizer_}, context_, path_, {});
  scheduler.step(3.0);  // two ranks: seen twice, as in Accelerate
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  scheduler.step(3.0);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
  context_.gradient_state.sync_gradients = false;
  scheduler.step(3.0);
  EXPECT_EQ(plateau.last_epoch(), 4);
}

TEST_F(AcceleratedOptimizerTest, AMetricForAScheduleWithoutOneIsAnArgumentError) {
  auto scheduler = accelerated({});
  EXPECT_THROW(scheduler.step(1.0), ArgumentError);
  ReduceLROnPlateau plateau(sgd_);
  AcceleratedScheduler without(plateau, {optimizer_}, context_, path_, {});
  EXPECT_THROW(without.step(), ArgumentError);
}

// Accelerate's own test_scheduler.py: two ranks, two steps in all.
TEST_F(AcceleratedOptimizerTest, AScheduleIsNeverSteppedPastItsTotal) {
  OneCycleLR one_cycle(sgd_, {.max_lr = 0.01, .total_steps = 2, .cycle_momentum = false});
  AcceleratedScheduler scheduler(one_cycle, {optimizer_}, context_, path_, {});
  scheduler.step();
  EXPECT_EQ(one_cycle.last_epoch(), 2);
  scheduler.step();
  EXPECT_EQ(one_cycle.last_epoch(), 2);
}

TEST_F(AcceleratedOptimizerTest, AnAdjustedScheduleCountsMicroBatchesThatDoNotStep) {
  for (const bool adjusts : {false, true}) {
    context_.gradient_state.plugin.adjust_scheduler = adjusts;
    OneCycleLR one_cycle(sgd_, {.max_lr = 0.01, .total_steps = 6, .cycle_momentum = false});
    AcceleratedScheduler scheduler(one_cycle, {optimizer_}, context_, path_, {});
    for (int micro_batch = 0; micro_batch < 8; ++micro_batch) {
      context_.gradient_state.sync_gradients = micro_batch % 2 == 1;
      scheduler.step();
    }
    EXPECT_EQ(one_cycle.last_epoch(), adjusts ? 4 : 6);
  }
}

TEST_F(AcceleratedOptimizerTest, WithoutAGuardAnInfinityReachesTheParameters) {
  weight_.mutable_grad().fill_(INFINITY);
  optimizer_.step();
  EXPECT_FALSE(optimizer_.step_was_skipped());
  EXPECT_FALSE(std::isfinite(weight_.item<float>()));
}

TEST_F(AcceleratedOptimizerTest, AGuardSkipsParametersAndScheduleAndReportsTheStep) {
  guard({.skip_non_finite = true});
  auto scheduler = accelerated({});
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    weight_.mutable_grad().fill_(bad);
    optimizer_.step();
    scheduler.step();
    EXPECT_TRUE(optimizer_.step_was_skipped());
    EXPECT_EQ(weight_.item<float>(), 10);
    EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  }
  weight_.mutable_grad().fill_(2);
  optimizer_.step();
  EXPECT_FALSE(optimizer_.step_was_skipped());
  EXPECT_EQ(weight_.item<float>(), 8);
}

TEST_F(AcceleratedOptimizerTest, AGuardOfTheNormLetsPassWhatIsAtMostThatLarge) {
  guard({.skip_norm_above = 2.0});
  optimizer_.step();
  EXPECT_EQ(weight_.item<float>(), 8);
  weight_.mutable_grad().fill_(2.5);
  optimizer_.step();
  EXPECT_TRUE(optimizer_.step_was_skipped());
  EXPECT_EQ(weight_.item<float>(), 8);
}

TEST_F(AcceleratedOptimizerTest, AStepMayHaveAClosure) {
  // The square's minimum, in the first step of Newton's kind.
  torch::optim::LBFGS lbfgs({weight_}, torch::optim::LBFGSOptions(0.5).max_iter(1));
  AcceleratedOptimizer optimizer(lbfgs, context_, path_);
  const auto square = [&] {
    optimizer.zero_grad();
    auto loss = (weight_ * weight_).sum() / 4;
    loss.backward();
    return loss;
  };
  auto alone = torch::full({1}, 10.0).requires_grad_();
  torch::optim::LBFGS plain({alone}, torch::optim::LBFGSOptions(0.5).max_iter(1));
  for (int step = 0; step < 3; ++step) {
    optimizer.step(square);
    plain.step([&] {
      plain.zero_grad();
      auto loss = (alone * alone).sum() / 4;
      loss.backward();
      return loss;
    });
    EXPECT_NE(weight_.item<float>(), 10);
    EXPECT_EQ(weight_.item<float>(), alone.item<float>());
  }
  context_.gradient_state.sync_gradients = false;
  const auto before = weight_.item<float>();
  optimizer.step(square);
  EXPECT_EQ(weight_.item<float>(), before);
}

TEST_F(AcceleratedOptimizerTest, AClosureIsAnErrorIfGradientsAreProcessedBeforeTheStep) {
  for (const auto& options :
       {AcceleratorOptions{.mixed_precision = "fp16"}, AcceleratorOptions{.loss_weighting = "exact"}}) {
    *path_ = GradientPipeline(context_, options, /*ranks_per_batch=*/1);
    EXPECT_THAT(message_of<StateError>([&] { optimizer_.step([] { return at::ones({}); }); }), HasSubstr("closure"));
    EXPECT_EQ(weight_.item<float>(), 10);
  }
}

TEST_F(AcceleratedOptimizerTest, ASkippedStepIsRememberedUntilTheNextThatSynchronises) {
  guard({.skip_non_finite = true});
  weight_.mutable_grad().fill_(NAN);
  optimizer_.step();
  context_.gradient_state.sync_gradients = false;
  weight_.mutable_grad().fill_(1);
  optimizer_.step();
  EXPECT_TRUE(optimizer_.step_was_skipped());
}

TEST_F(AcceleratedOptimizerTest, SamplesThatMakeNoWholeStepWaitForTheNextWindow) {
  auto scheduler = accelerated({.samples_per_step = 10});
  std::vector<double> rates;
  for (const int samples : {4, 4, 4, 30, 8}) {
    context_.gradient_state.num_samples += samples;
    scheduler.step();
    rates.push_back(scheduler.get_last_lr().front());
  }
  EXPECT_THAT(rates, ElementsAre(1.0, 1.0, 0.875, 0.5, 0.375));
}

// The schedule steps every third time; a state is taken between.
TEST_F(AcceleratedOptimizerTest, SamplesThatWaitForTheScheduleAreSaved) {
  auto scheduler = accelerated({.samples_per_step = 10});
  context_.gradient_state.num_samples += 25;
  const auto state = scheduler.state_dict();
  EXPECT_EQ(state.at("pending"), Value(25));
  context_.gradient_state.num_samples = 3;  // of another process
  auto resumed = accelerated({.samples_per_step = 10});
  resumed.load_state_dict(state);
  context_.gradient_state.num_samples += 5;
  resumed.step();
  EXPECT_THAT(resumed.get_last_lr(), ElementsAre(1.0 - 3 / 8.0));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                resumed.load_state_dict(Value::Dict{{"samples", 1}, {"pending", "many"}});
              }),
              HasSubstr("pending"));
}

TEST_F(AcceleratedOptimizerTest, SamplesOfASkippedStepAreNotCounted) {
  guard({.skip_non_finite = true});
  auto scheduler = accelerated({.samples_per_step = 10});
  weight_.mutable_grad().fill_(NAN);
  optimizer_.step();
  context_.gradient_state.num_samples += 10;
  scheduler.step();
  weight_.mutable_grad().fill_(1);
  optimizer_.step();
  context_.gradient_state.num_samples += 9;
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  const auto state = scheduler.state_dict();
  EXPECT_EQ(state.at("samples"), Value(9));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                scheduler.load_state_dict(Value::Dict{{"samples", -1}});
              }),
              HasSubstr("samples"));
}

}  // namespace
}  // namespace accel
