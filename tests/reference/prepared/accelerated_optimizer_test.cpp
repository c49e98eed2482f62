// Tests of the prepared optimizer and schedule. They decide when a step really happens: only when gradients are
// synchronised, not if a guard finds bad gradients, and for the schedule as often as Accelerate would step it. A
// weight of 10 with a gradient of 1 and a rate of 1 shows each step. It belongs to
// no model, so each step says that its gradient is averaged.
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

// Within an accumulation window a step must do nothing, so that a program needs no condition around it.
TEST_F(AcceleratedOptimizerTest, AStepActsOnlyWhenGradientsAreSynchronised) {
  context_.gradient_state.sync_gradients = false;
  optimizer_.step({.averaged = true});
  EXPECT_EQ(weight_.item<float>(), 10);
  context_.gradient_state.sync_gradients = true;
  optimizer_.step({.averaged = true});
  EXPECT_EQ(weight_.item<float>(), 8);
  EXPECT_FALSE(optimizer_.step_was_skipped());
}

// Zeroing between the micro-batches of one step would lose the gradients accumulated so far.
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

// A schedule counts batches of one rank in the original program. With two ranks, each step covers two batches, so
// it is stepped twice, as in Accelerate.
TEST_F(AcceleratedOptimizerTest, AScheduleStepsOnceForEachRank) {
  auto scheduler = accelerated({});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.75));
}

// With split batches, the ranks share one batch, so one step is enough.
TEST_F(AcceleratedOptimizerTest, AScheduleStepsOnceIfBatchesAreSplit) {
  auto scheduler = accelerated({.split_batches = true});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.875));
}

// A schedule that stepped at every micro-batch would end too early.
TEST_F(AcceleratedOptimizerTest, AScheduleWaitsForTheOptimizer) {
  context_.gradient_state.sync_gradients = false;
  auto scheduler = accelerated({});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
}

// For schedules that count calls, such as one step per epoch.
TEST_F(AcceleratedOptimizerTest, AScheduleOnItsOwnStepsOnceAtEachCall) {
  context_.gradient_state.sync_gradients = false;
  auto scheduler = accelerated({.step_with_optimizer = false});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.875));
}

TEST_F(AcceleratedOptimizerTest, AMetricStepsAMetricDrivenSchedule) {
  ReduceLROnPlateau plateau(sgd_, {.factor = 0.5, .patience = 1, .threshold = 0.0});
  AcceleratedScheduler scheduler(plateau, {optimizer_}, context_, path_, {});
  scheduler.step(3.0);  // two ranks: the metric counts twice, as in Accelerate
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  scheduler.step(3.0);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
  context_.gradient_state.sync_gradients = false;
  scheduler.step(3.0);
  EXPECT_EQ(plateau.last_epoch(), 4);
}

// Both directions: a metric that is not needed, and one that is missing.
TEST_F(AcceleratedOptimizerTest, AMetricForAScheduleWithoutOneIsAnArgumentError) {
  auto scheduler = accelerated({});
  EXPECT_THROW(scheduler.step(1.0), ArgumentError);
  ReduceLROnPlateau plateau(sgd_);
  AcceleratedScheduler without(plateau, {optimizer_}, context_, path_, {});
  EXPECT_THROW(without.step(), ArgumentError);
}

// As in Accelerate's test_scheduler.py: with two ranks, two calls would make four steps, but the schedule has two
// in total and would throw at the third.
TEST_F(AcceleratedOptimizerTest, AScheduleIsNeverSteppedPastItsTotal) {
  OneCycleLR one_cycle(sgd_, {.max_lr = 0.01, .total_steps = 2, .cycle_momentum = false});
  AcceleratedScheduler scheduler(one_cycle, {optimizer_}, context_, path_, {});
  scheduler.step();
  EXPECT_EQ(one_cycle.last_epoch(), 2);
  scheduler.step();
  EXPECT_EQ(one_cycle.last_epoch(), 2);
}

// With `adjust_scheduler`, a micro-batch without a step advances only the schedule's count of steps, as in
// Accelerate.
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

// The counterpart of the next test: by default nothing checks the gradients, as in PyTorch.
TEST_F(AcceleratedOptimizerTest, WithoutAGuardAnInfinityReachesTheParameters) {
  weight_.mutable_grad().fill_(INFINITY);
  optimizer_.step({.averaged = true});
  EXPECT_FALSE(optimizer_.step_was_skipped());
  EXPECT_FALSE(std::isfinite(weight_.item<float>()));
}

// For infinity and NaN alike. The program can ask whether the step was skipped.
TEST_F(AcceleratedOptimizerTest, AGuardSkipsParametersAndScheduleAndReportsTheStep) {
  guard({.skip_non_finite = true});
  auto scheduler = accelerated({});
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    weight_.mutable_grad().fill_(bad);
    optimizer_.step({.averaged = true});
    scheduler.step();
    EXPECT_TRUE(optimizer_.step_was_skipped());
    EXPECT_EQ(weight_.item<float>(), 10);
    EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  }
  weight_.mutable_grad().fill_(2);
  optimizer_.step({.averaged = true});
  EXPECT_FALSE(optimizer_.step_was_skipped());
  EXPECT_EQ(weight_.item<float>(), 8);
}

// The gradient is 2, which equals the limit; 2.5 is above it.
TEST_F(AcceleratedOptimizerTest, ANormGuardAcceptsANormUpToItsLimit) {
  guard({.skip_norm_above = 2.0});
  optimizer_.step({.averaged = true});
  EXPECT_EQ(weight_.item<float>(), 8);
  weight_.mutable_grad().fill_(2.5);
  optimizer_.step({.averaged = true});
  EXPECT_TRUE(optimizer_.step_was_skipped());
  EXPECT_EQ(weight_.item<float>(), 8);
}

TEST_F(AcceleratedOptimizerTest, AStepMayTakeAClosure) {
  // The closure computes a parabola. The steps must equal those of a plain LBFGS without the Accelerator.
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
    optimizer.step(square, {.averaged = true});
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
  optimizer.step(square, {.averaged = true});
  EXPECT_EQ(weight_.item<float>(), before);
}

// Scaling and exact loss weighting change the gradients between backward and step. With a closure the optimizer
// runs backward itself, and this work would be left out.
TEST_F(AcceleratedOptimizerTest, AClosureIsAnErrorIfGradientsAreProcessedBeforeTheStep) {
  for (const auto& options :
       {AcceleratorOptions{.mixed_precision = "fp16"}, AcceleratorOptions{.loss_weighting = "exact"}}) {
    *path_ = GradientPipeline(context_, options, /*ranks_per_batch=*/1);
    EXPECT_THAT(message_of<StateError>([&] { optimizer_.step([] { return at::ones({}); }); }), HasSubstr("closure"));
    EXPECT_EQ(weight_.item<float>(), 10);
  }
}

// Programs ask after the loop over the micro-batches, not directly after the step.
TEST_F(AcceleratedOptimizerTest, ASkippedStepIsRememberedUntilTheNextSynchronisedStep) {
  guard({.skip_non_finite = true});
  weight_.mutable_grad().fill_(NAN);
  optimizer_.step({.averaged = true});
  context_.gradient_state.sync_gradients = false;
  weight_.mutable_grad().fill_(1);
  optimizer_.step({.averaged = true});
  EXPECT_TRUE(optimizer_.step_was_skipped());
}

// With samples_per_step = 10, the counts 4, 8, 12, 42 and 50 make 0, 0, 1, 4 and 5 steps.
TEST_F(AcceleratedOptimizerTest, SamplesShortOfAFullStepCountForTheNextWindow) {
  auto scheduler = accelerated({.samples_per_step = 10});
  std::vector<double> rates;
  for (const int samples : {4, 4, 4, 30, 8}) {
    context_.gradient_state.num_samples += samples;
    scheduler.step();
    rates.push_back(scheduler.get_last_lr().front());
  }
  EXPECT_THAT(rates, ElementsAre(1.0, 1.0, 0.875, 0.5, 0.375));
}

// All 25 samples still wait for the schedule when the state is saved; 5 more make three steps of 10. Between saving
// and loading, the counter belongs to another process.
TEST_F(AcceleratedOptimizerTest, SamplesThatWaitForTheScheduleAreSaved) {
  auto scheduler = accelerated({.samples_per_step = 10});
  context_.gradient_state.num_samples += 25;
  const auto state = scheduler.state_dict();
  EXPECT_EQ(state.at("pending"), Value(25));
  context_.gradient_state.num_samples = 3;  // the count of another process
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

// The schedule follows the progress of training, and a skipped step makes none.
TEST_F(AcceleratedOptimizerTest, SamplesOfASkippedStepAreNotCounted) {
  guard({.skip_non_finite = true});
  auto scheduler = accelerated({.samples_per_step = 10});
  weight_.mutable_grad().fill_(NAN);
  optimizer_.step({.averaged = true});
  context_.gradient_state.num_samples += 10;
  scheduler.step();
  weight_.mutable_grad().fill_(1);
  optimizer_.step({.averaged = true});
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
