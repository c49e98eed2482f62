#include "reference/optim/accelerated_optimizer.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "reference/core/errors.hpp"

using testing::ElementsAre;

namespace accel {
namespace {

class AcceleratedOptimizerTest : public testing::Test {
 protected:
  AcceleratedOptimizerTest() {
    context_.world_size = 2;
    weight_.mutable_grad() = torch::full({1}, 2.0);
  }
  AcceleratedScheduler accelerated(SchedulerOptions options) { return {scheduler_, context_, options}; }

  RankContext context_;
  at::Tensor weight_ = torch::full({1}, 10.0).requires_grad_();
  torch::optim::SGD sgd_ = torch::optim::SGD({weight_}, /*lr=*/1.0);
  LambdaLR scheduler_ = LambdaLR(sgd_, [](int epoch) { return 1.0 - epoch / 8.0; });
  AcceleratedOptimizer optimizer_ = AcceleratedOptimizer(sgd_, context_);
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

}  // namespace
}  // namespace accel
