// GreedyLR, a schedule that raises and lowers the rate by a metric. The expected rates follow from the algorithm
// step by step.
#include "reference/optim/schedules/greedy_lr.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

// The rate after each of these metrics.
std::vector<double> greedy_rates(GreedyLR& scheduler, const std::vector<double>& metrics) {
  std::vector<double> rates;
  for (const auto metric : metrics) {
    scheduler.step(metric);
    rates.push_back(scheduler.get_last_lr().front());
  }
  return rates;
}

// A patience of 1 needs two steps of the same kind in a row.
TEST(GreedyLRTest, TheRateRisesWithBetterMetricsAndFallsWithWorseOnes) {
  auto optimizer = sgd({8.0});
  GreedyLR scheduler(optimizer, {.factor = 0.5, .patience = 1, .max_lr = 32.0});
  EXPECT_THAT(greedy_rates(scheduler, {9, 8, 7, 6, 5, 4, 4, 4, 4, 4}),
              ElementsAre(8, 16, 16, 32, 32, 32, 32, 16, 16, 8));
}

// The metric of these steps may move because of the last change of the rate.
TEST(GreedyLRTest, StepsDuringWarmUpAndCooldownDoNotCount) {
  auto optimizer = sgd({8.0});
  GreedyLR scheduler(optimizer, {.factor = 0.5, .patience = 0, .cooldown = 2, .warmup = 1, .max_lr = 100.0});
  EXPECT_THAT(greedy_rates(scheduler, {9, 8, 7, 7, 7, 7, 7}), ElementsAre(16, 16, 32, 32, 16, 16, 16));
}

// The best metric is forgotten too, or no later metric would count as better.
TEST(GreedyLRTest, ReductionsAtTheMinimumRateRestartTheSchedule) {
  auto optimizer = sgd({8.0});
  GreedyLR scheduler(optimizer, {.factor = 0.5, .patience = 0, .min_lr = 4.0, .max_lr = 8.0, .reset_start = 3});
  EXPECT_THAT(greedy_rates(scheduler, {1, 1, 1, 1, 2, 2}), ElementsAre(8, 4, 4, 8, 8, 4))
      << "2 is the best metric since the restart";
}

// Single bad batches must not change the rate.
TEST(GreedyLRTest, SmoothFollowsTheMeanOfTheLastMetrics) {
  auto optimizer = sgd({8.0});
  GreedyLR scheduler(optimizer, {.factor = 0.5, .patience = 0, .max_lr = 1000.0, .smooth = true, .window_size = 2});
  EXPECT_THAT(greedy_rates(scheduler, {4, 6, 2, 6}), ElementsAre(16, 8, 4, 2))
      << "means are 4, 5, 4, 4; without smoothing it would rise at 2";
}

// Both groups follow the same decisions.
TEST(GreedyLRTest, EachGroupHasItsBounds) {
  auto optimizer = sgd({8.0, 8.0});
  GreedyLR scheduler(optimizer, {.factor = 0.5, .patience = 0, .min_lr = {1.0, 6.0}, .max_lr = {9.0, 16.0}});
  scheduler.step(1);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(9, 16));
  for (int step = 0; step < 2; ++step) scheduler.step(1);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(2.25, 6));
}

// Unlike other schedules, this one restores the rates too, as they depend on all metrics so far.
TEST(GreedyLRTest, AStateContinuesWithItsRates) {
  const GreedyLROptions options{.factor = 0.5, .patience = 1, .max_lr = 100.0, .smooth = true, .window_size = 3};
  auto optimizer = sgd({8.0}), other = sgd({8.0});
  GreedyLR scheduler(optimizer, options), resumed(other, options);
  greedy_rates(scheduler, {9, 8, 7, 6, 5});
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(rate_of(other), rate_of(optimizer));
  const std::vector<double> metrics{4, 4, 9, 9, 3, 2, 1};
  EXPECT_EQ(greedy_rates(resumed, metrics), greedy_rates(scheduler, metrics));
}

// The window of the mean, the mode and others are wrong; valid entries must not be taken over either.
TEST(GreedyLRTest, AStateThatDoesNotFitIsACheckpointErrorAndChangesNothing) {
  auto optimizer = sgd({8.0});
  GreedyLR scheduler(optimizer, {.smooth = true});
  auto state = scheduler.state_dict().as<Value::Dict>();
  state["_streaming_avg"] = Value::Dict{{"window_size", 50}, {"values", "none"}};
  state["mode"] = "best";
  state["best"] = 1.0;
  const auto message = message_thrown<CheckpointError>([&] { scheduler.load_state_dict(state); });
  EXPECT_THAT(message, ::testing::AllOf(::testing::HasSubstr("_streaming_avg.values"),
                                        ::testing::HasSubstr("_streaming_avg.sum"), ::testing::HasSubstr("mode")));
  EXPECT_EQ(scheduler.state_dict().at("best"), Value(std::numeric_limits<double>::infinity()));
}

TEST(GreedyLRTest, WrongArgumentsAreArgumentErrors) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(GreedyLR(optimizer, {.mode = "least"}), ArgumentError);
  EXPECT_THROW(GreedyLR(optimizer, {.factor = 1.0}), ArgumentError);
  EXPECT_THROW(GreedyLR(optimizer, {.factor = 0.0}), ArgumentError);
  EXPECT_THROW(GreedyLR(optimizer, {.threshold_mode = "percent"}), ArgumentError);
  EXPECT_THROW(GreedyLR(optimizer, {.max_lr = {0.1, 0.2}}), ArgumentError);
  EXPECT_THROW(GreedyLR(optimizer, {.window_size = 0}), ArgumentError);
  GreedyLR scheduler(optimizer);
  EXPECT_THROW(static_cast<LRScheduler&>(scheduler).step(), ArgumentError);
}

}  // namespace
}  // namespace accel::testing
