// The key `scheduler` of experiment files: names, nested schedules, and problems. The rates themselves are compared
// with Python elsewhere.
#include "sim/programs/experiments/optimizer_config.hpp"

#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

programs::SchedulerConfig read(const std::string& text) {
  YamlProblems problems("run.yaml");
  auto config = programs::read_scheduler(YamlReader(YAML::Load(text), "scheduler.", problems));
  problems.throw_if_any();
  return config;
}

std::string problems_of(const std::string& text) {
  return message_thrown<ConfigError>([&] { read(text); });
}

// The contract for experiment files defines "linear" with one step of warm-up and decay to 0 at total_steps.
TEST(SchedulerConfigTest, LinearIsTheScheduleOfTheContract) {
  auto optimizer = sgd({8.0});
  const auto scheduler = programs::build_scheduler(read("{name: linear, warmup_steps: 1, total_steps: 3}"), optimizer);
  EXPECT_THAT(rates_over(*scheduler, 3), ElementsAre(4, 8, 4, 0));
}

// A schedule may be nested to any depth, so it must be read by the same function at each level.
TEST(SchedulerConfigTest, PartsAreSchedulesThemselves) {
  auto optimizer = sgd({8.0});
  const auto config = read(R"({name: sequential, milestones: [2], schedulers: [
    {name: chained, schedulers: [{name: constant, factor: 0.5}, {name: step, step_size: 1, gamma: 0.5}]},
      {name: exponential, gamma: 0.5}]})");
  EXPECT_EQ(programs::build_scheduler(config, optimizer)->get_last_lr().size(), 1U);
}

// It is stepped with a metric, which the schedule around it cannot pass on.
TEST(SchedulerConfigTest, ReduceLROnPlateauCannotBeAPart) {
  auto optimizer = sgd({8.0});
  const auto config = read("{name: reduce_lr_on_plateau, factor: 0.5, patience: 0}");
  ASSERT_TRUE(config.follows_metric());
  const auto scheduler = programs::build_scheduler(config, optimizer);
  for (int epoch = 0; epoch < 2; ++epoch) scheduler->step(1.0);
  EXPECT_THAT(scheduler->get_last_lr(), ElementsAre(4));
  EXPECT_THAT(problems_of("{name: chained, schedulers: [{name: reduce_lr_on_plateau}]}"), HasSubstr("needs a metric"));
  EXPECT_THAT(problems_of("{name: reduce_lr_on_plateau, mode: least, factor: 1, patience: -1}"),
              AllOf(HasSubstr("min or max"), HasSubstr("between 0 and 1"), HasSubstr("scheduler.patience")));
}

TEST(SchedulerConfigTest, NoScheduleIsNull) {
  auto optimizer = sgd({8.0});
  EXPECT_EQ(programs::build_scheduler(std::nullopt, optimizer), nullptr);
}

TEST(SchedulerConfigTest, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(problems_of("{name: square, T_max: 3}"),
              AllOf(HasSubstr("scheduler.name"), HasSubstr("one_cycle"), HasSubstr("wsd")));
}

// `epochs` is a valid key and must not be among the problems.
TEST(SchedulerConfigTest, AllProblemsAreReported) {
  EXPECT_THAT(
      problems_of("{name: one_cycle, max_lr: -1, epochs: 3, anneal_strategy: square, div_factor: 0, speed: 2}"),
      AllOf(HasSubstr("scheduler.max_lr"), HasSubstr("scheduler.total_steps"), HasSubstr("scheduler.anneal_strategy"),
            HasSubstr("scheduler.div_factor"), HasSubstr("scheduler.speed"), Not(HasSubstr("scheduler.epochs"))));
  EXPECT_THAT(problems_of("{name: wsd, num_warmup_steps: 3, decay_type: steep}"),
              AllOf(HasSubstr("num_decay_steps"), HasSubstr("num_training_steps"), HasSubstr("decay_type")));
}

// Milestones and parts have to match in number and in order.
TEST(SchedulerConfigTest, ProblemsOfPartsAreReported) {
  EXPECT_THAT(
      problems_of(
          "{name: sequential, milestones: [5, 3], schedulers: [{name: step}, {name: chained, schedulers: []}]}"),
      AllOf(HasSubstr("step_size"), HasSubstr("expected at least one"), HasSubstr("ascending order"),
            HasSubstr("cannot start at a milestone")));
  EXPECT_THAT(problems_of("{name: sequential, milestones: [5, 7], schedulers: [{name: linear_lr}, {name: linear_lr}]}"),
              HasSubstr("expected 1 milestones, one fewer than schedulers, got 2"));
  EXPECT_THAT(problems_of("{name: chained}"), HasSubstr("schedulers"));
}

// lr_end must be below the optimizer's rate, which the file's reader does not have.
TEST(SchedulerConfigTest, ProblemsThatDependOnTheOptimizerAreConfigErrors) {
  auto optimizer = sgd({8.0});
  const auto config =
      read("{name: polynomial_decay_with_warmup, num_warmup_steps: 1, num_training_steps: 3, lr_end: 2}");
  EXPECT_THAT(message_thrown<ConfigError>([&] { programs::build_scheduler(config, optimizer); }), HasSubstr("lr_end"));
}

}  // namespace
}  // namespace accel::testing
