// Tests of the base class of all schedules: where a schedule starts, what it saves, and what happens if the
// optimizer's groups change. The expected values follow torch/optim/lr_scheduler.py.
#include "reference/optim/schedules/lr_scheduler.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/optim/schedules/combined_schedules.hpp"
#include "reference/optim/schedules/cosine_schedules.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The first parameter group in the optimizer's state dict.
Value group_of(torch::optim::Optimizer& optimizer) {
  return optim::state_dict(optimizer).at("param_groups").as<Value::List>().front();
}

// The first schedule halves the rates. The second must not take the halved rates for its base rates.
TEST(LRSchedulerTest, ALaterScheduleStartsFromTheRatesBeforeTheFirst) {
  auto optimizer = sgd({8.0, 4.0});
  const LinearLR first(optimizer, /*start_factor=*/0.5);
  const StepLR second({optimizer, first.initial_lrs()}, /*step_size=*/3);
  EXPECT_THAT(second.base_lrs(), ElementsAre(8, 4));
  EXPECT_THAT(second.get_last_lr(), ElementsAre(4, 2));
}

// PyTorch does `group.setdefault("initial_lr", group["lr"])`, so the initial rate survives in the optimizer's
// state. ReduceLROnPlateau is no such schedule and leaves no entry.
TEST(LRSchedulerTest, OurOptimizersKeepTheRatesThatALaterScheduleStartsFrom) {
  optim::Adam optimizer({torch::zeros({1}).requires_grad_()}, {.lr = 8.0});
  const ReduceLROnPlateau keeps_none(optimizer);
  EXPECT_FALSE(group_of(optimizer).contains("initial_lr"));
  const LinearLR first(optimizer, /*start_factor=*/0.5);
  EXPECT_EQ(group_of(optimizer).at("initial_lr"), Value(8.0));
  const StepLR second(optimizer, /*step_size=*/3);
  EXPECT_THAT(second.base_lrs(), ElementsAre(8));
  ScheduledOptimizer behind(optimizer);
  behind.last_epoch = 4;
  EXPECT_THAT(StepLR(behind, /*step_size=*/3).base_lrs(), ElementsAre(8));
}

// OneCycleLR of Python reads these entries from the groups when training resumes, so a checkpoint of ours must have
// them.
TEST(LRSchedulerTest, OneCycleKeepsItsRatesInTheStateDictOfOurOptimizers) {
  optim::Adam optimizer({torch::zeros({1}).requires_grad_()}, {.lr = 8.0});
  const OneCycleLR scheduler(optimizer, {.max_lr = 2.0, .total_steps = 10, .div_factor = 4.0, .final_div_factor = 2.0});
  const auto group = group_of(optimizer);
  EXPECT_EQ(group.at("initial_lr"), Value(0.5));
  EXPECT_EQ(group.at("max_lr"), Value(2.0));
  EXPECT_EQ(group.at("min_lr"), Value(0.25));
  EXPECT_EQ(group.at("base_momentum"), Value(0.85));
  EXPECT_EQ(group.at("max_momentum"), Value(0.95));
}

// The added group has no initial rate yet; it must not get the one of its neighbours.
TEST(LRSchedulerTest, AGroupThatIsAddedStartsFromItsOwnRate) {
  optim::Adam optimizer({torch::zeros({1}).requires_grad_()}, {.lr = 8.0});
  StepLR first(optimizer, /*step_size=*/1);
  first.step();
  optimizer.add_param_group({torch::zeros({1}).requires_grad_()}, {.lr = 3.0});
  const StepLR second(optimizer, /*step_size=*/3);
  EXPECT_THAT(second.base_lrs(), ElementsAre(8, 3));
  ScheduledOptimizer behind(optimizer);
  behind.last_epoch = 4;
  EXPECT_EQ(StepLR(behind, /*step_size=*/3).base_lrs().size(), 2U);
}

// As in PyTorch, the state holds the rates of the groups that existed when the schedule was created. The state must
// still be accepted after a group was added.
TEST(LRSchedulerTest, AScheduleWhoseOptimizerGotAGroupIsSavedAndLoaded) {
  const auto run = [](std::optional<Value> state) {
    auto optimizer = sgd({8.0});
    StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
    ReduceLROnPlateau plateau(optimizer);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({1}).requires_grad_()},
                                                                std::make_unique<torch::optim::SGDOptions>(4.0)));
    if (state) scheduler.load_state_dict(*state);
    scheduler.step();
    const auto of_plateau = plateau.state_dict();
    plateau.load_state_dict(of_plateau);
    return scheduler.state_dict();
  };
  const auto once = run(std::nullopt);
  EXPECT_EQ(once.at("_last_lr"), Value(Value::List{8.0, 4.0}));
  const auto twice = run(once);
  EXPECT_EQ(twice.at("last_epoch"), Value(2));
  EXPECT_EQ(twice.at("_last_lr"), Value(Value::List{4.0, 2.0}));
}

// The schedule is created as if epochs 0 to 5 were over, so it is at epoch 6 and halves the rate at the next step.
TEST(LRSchedulerTest, AScheduleStartsAfterAGivenEpoch) {
  auto optimizer = sgd({8.0});
  StepLR scheduler({optimizer, {16.0}, /*last_epoch=*/5}, /*step_size=*/7, /*gamma=*/0.5);
  EXPECT_EQ(scheduler.last_epoch(), 6);
  EXPECT_THAT(rates_over(scheduler, 1), ElementsAre(8, 4));
  EXPECT_THAT(scheduler.base_lrs(), ElementsAre(16));
}

// Each wrong argument is one that a program can pass by mistake; the last has an epoch but no initial rates to
// continue from.
TEST(LRSchedulerTest, WrongStartsAreArgumentErrors) {
  auto optimizer = sgd({8.0});
  EXPECT_THROW(StepLR({optimizer, {1.0, 2.0}}, 3), ArgumentError);
  EXPECT_THROW(StepLR({optimizer, {1.0}, -2}, 3), ArgumentError);
  ScheduledOptimizer without_rates(optimizer);
  without_rates.last_epoch = 4;
  EXPECT_THROW(StepLR(without_rates, 3), ArgumentError);
}

// PyTorch counts the initial step too and stores the count as _step_count.
TEST(LRSchedulerTest, StepsAreCountedFromOne) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, 3);
  EXPECT_EQ(scheduler.step_count(), 1);
  scheduler.step();
  scheduler.advance_step_count();
  EXPECT_EQ(scheduler.step_count(), 3);
  EXPECT_EQ(scheduler.last_epoch(), 1);
  EXPECT_FALSE(scheduler.total_steps().has_value());
}

// Users derive their own schedules: the base class must suffice for them.
TEST(LRSchedulerTest, AUserDefinedScheduleIsSteppedLikeTheBuiltInOnes) {
  class Halving : public LRScheduler {
   public:
    explicit Halving(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) { initial_step(); }

   private:
    std::vector<double> get_lr(const std::vector<double>& current) const override {
      return {last_epoch() == 0 ? current[0] : current[0] / 2};
    }
  };
  auto optimizer = sgd({8.0});
  Halving scheduler(optimizer);
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(8, 4, 2));
  EXPECT_EQ(scheduler.state_dict().at("last_epoch"), Value(2));
}

// This schedule computes each rate from the base rates, and there is none for the new group.
TEST(LRSchedulerTest, AGroupThatIsAddedLaterIsAStateError) {
  auto optimizer = sgd({8.0});
  CosineAnnealingWarmRestarts scheduler(optimizer, 3);
  optimizer.add_param_group({{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.1)});
  EXPECT_THROW(scheduler.step(), StateError);
}

// A checkpoint has to be readable by Python, which looks the entries up by these names.
TEST(LRSchedulerTest, TheStateHasPythonsKeys) {
  auto optimizer = sgd({8.0});
  const StepLR scheduler(optimizer, /*step_size=*/3, /*gamma=*/0.5);
  const Value expected(Value::Dict{{"step_size", 3},
                                   {"gamma", 0.5},
                                   {"base_lrs", Value::List{8.0}},
                                   {"last_epoch", 0},
                                   {"_step_count", 1},
                                   {"_is_initial", false},
                                   {"_get_lr_called_within_step", false},
                                   {"_last_lr", Value::List{8.0}}});
  EXPECT_EQ(scheduler.state_dict(), expected);
}

// The optimizer's own state restores the rate. If the schedule set it too, the order of loading would matter.
TEST(LRSchedulerTest, LoadingAScheduleDoesNotChangeTheOptimizersRate) {
  auto optimizer = sgd({8.0}), other = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5), restored(other, /*step_size=*/1);
  scheduler.step();
  restored.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(rate_of(other), 8.0);
  EXPECT_THAT(restored.get_last_lr(), ElementsAre(4));
  EXPECT_EQ(restored.state_dict(), scheduler.state_dict());
}

// Each entry is wrong in another way: value, type, length.
TEST(LRSchedulerTest, AllErrorsOfAStateAreReportedAndNothingChanges) {
  auto optimizer = sgd({8.0});
  StepLR scheduler(optimizer, /*step_size=*/3);
  const auto before = scheduler.state_dict();
  const Value bad(Value::Dict{{"step_size", 0},
                              {"gamma", "big"},
                              {"base_lrs", Value::List{1.0, 2.0}},
                              {"last_epoch", 7},
                              {"_step_count", 2.5}});
  EXPECT_THAT(message_thrown<CheckpointError>([&] { scheduler.load_state_dict(bad); }),
              AllOf(HasSubstr("step_size: expected 1 or more, got 0"), HasSubstr("gamma: expected float, got string"),
                    HasSubstr("base_lrs: expected a list of 1, one per parameter group, got a list of 2"),
                    HasSubstr("_last_lr: missing"), HasSubstr("_step_count: expected int, got float")));
  EXPECT_EQ(scheduler.state_dict(), before);
  EXPECT_THROW(scheduler.load_state_dict(Value(3)), CheckpointError);
}

// A SequentialLR holds other schedules. Without the path, a user would not know whose entry is wrong.
TEST(LRSchedulerTest, ErrorsInPartsOfAStateAreReportedWithTheirPath) {
  auto optimizer = sgd({8.0});
  SequentialLR scheduler(optimizer, {schedule<OneCycleLR>({.max_lr = 1.0, .total_steps = 10}), schedule<StepLR>(3)},
                         {5});
  auto state = scheduler.state_dict().as<Value::Dict>();
  auto parts = state["_schedulers"].as<Value::List>();
  auto cycle = parts[0].as<Value::Dict>();
  auto phases = cycle["_schedule_phases"].as<Value::List>();
  phases[1] =
      Value::Dict{{"end_step", 3}, {"start_lr", "low"}, {"end_lr", "max_lr"}, {"start_momentum", "base_momentum"}};
  cycle["_schedule_phases"] = phases;
  parts[0] = cycle;
  parts[1] = 3;
  state["_schedulers"] = parts;
  EXPECT_THAT(
      message_thrown<CheckpointError>([&] { scheduler.load_state_dict(state); }),
      AllOf(
          HasSubstr("_schedulers[0]._schedule_phases[1].start_lr: expected initial_lr or max_lr or min_lr, got 'low'"),
          HasSubstr("_schedulers[0]._schedule_phases[1].end_momentum: missing"),
          HasSubstr("_schedulers[1].gamma: missing")));
}

}  // namespace
}  // namespace accel::testing
