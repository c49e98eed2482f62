// get_scheduler of Transformers: schedules by name with warm-up, and their arguments.
#include "reference/optim/schedules/get_scheduler.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/warmup_schedules.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Configuration files have names; programs call the functions.
TEST(GetSchedulerTest, ANameGivesTheSameScheduleAsItsFunction) {
  auto optimizer = sgd({8.0}), other = sgd({8.0});
  const auto named = get_scheduler("linear", optimizer, {.num_warmup_steps = 2, .num_training_steps = 4});
  const auto direct = get_linear_schedule_with_warmup(other, {.num_warmup_steps = 2, .num_training_steps = 4});
  EXPECT_THAT(rates_over(*named, 5), ElementsAre(0, 4, 8, 4, 0, 0));
  EXPECT_THAT(rates_over(*direct, 5), ElementsAre(0, 4, 8, 4, 0, 0));
}

// The arguments come as a dict, so neither names nor types are checked by the compiler.
TEST(GetSchedulerTest, AllProblemsOfTheArgumentsAreReported) {
  auto optimizer = sgd({8.0});
  const GetSchedulerOptions options{.num_warmup_steps = 2,
                                    .scheduler_specific_kwargs = {{"power", "two"}, {"cycles", 3}}};
  EXPECT_THAT(message_thrown<ArgumentError>([&] { get_scheduler("polynomial", optimizer, options); }),
              AllOf(HasSubstr("num_training_steps: missing"), HasSubstr("power: unsupported type string"),
                    HasSubstr("cycles: not an argument")));
  EXPECT_THAT(message_thrown<ArgumentError>([&] { get_scheduler("square", optimizer); }),
              AllOf(HasSubstr("cosine_with_restarts"), HasSubstr("'square'")));
}

// The other schedules compute the number from the total.
TEST(GetSchedulerTest, AStableScheduleNeedsItsDecaySteps) {
  auto optimizer = sgd({8.0});
  const GetSchedulerOptions options{.num_warmup_steps = 2, .num_training_steps = 10};
  EXPECT_THAT(message_thrown<ArgumentError>([&] { get_scheduler("warmup_stable_decay", optimizer, options); }),
              HasSubstr("num_decay_steps: missing"));
}

// As in Transformers, e.g. an end rate that is not below the initial one.
TEST(WarmupSchedulesTest, WrongArgumentsAreArgumentErrors) {
  auto optimizer = sgd({1.0});
  EXPECT_THROW(get_polynomial_decay_schedule_with_warmup(optimizer, {.num_training_steps = 9, .lr_end = 1.0}),
               ArgumentError);
  EXPECT_THROW(get_cosine_with_min_lr_schedule_with_warmup(optimizer, {.num_training_steps = 9}), ArgumentError);
  EXPECT_THROW(get_cosine_with_min_lr_schedule_with_warmup(
                   optimizer, {.num_training_steps = 9, .min_lr = 0.1, .min_lr_rate = 0.1}),
               ArgumentError);
  EXPECT_THROW(get_wsd_schedule(optimizer, {.num_decay_steps = 3}), ArgumentError);
  EXPECT_THROW(get_wsd_schedule(optimizer, {.num_training_steps = 3, .warmup_type = "square"}), ArgumentError);
  EXPECT_THROW(get_inverse_sqrt_schedule(optimizer, 3, /*timescale=*/0), ArgumentError);
}

// Two steps in each of the three phases.
TEST(WarmupSchedulesTest, AStableScheduleRisesStaysConstantAndFalls) {
  auto optimizer = sgd({8.0});
  const auto scheduler = get_wsd_schedule(
      optimizer, {.num_warmup_steps = 2, .num_decay_steps = 2, .num_stable_steps = 2, .decay_type = "linear"});
  EXPECT_THAT(rates_over(*scheduler, 7), ElementsAre(0, 4, 8, 8, 8, 4, 0, 0));
}

}  // namespace
}  // namespace accel::testing
