#include "reference/optim/schedules/lambda_lr.hpp"

#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

// LambdaLR and MultiplicativeLR. Most schedules of Transformers are a LambdaLR: see warmup_schedules.cpp.
namespace accel {

FactorSchedule::FactorSchedule(ScheduledOptimizer optimizer, EpochFactor lr_lambda)
    : FactorSchedule(optimizer, std::vector(optimizer.optimizer->param_groups().size(), std::move(lr_lambda))) {}

FactorSchedule::FactorSchedule(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas)
    : LRScheduler(std::move(optimizer)), lr_lambdas_(std::move(lr_lambdas)) {
  check_argument(lr_lambdas_.size() == base_lrs().size(),
                 "lr_lambda: expected {} functions, one per parameter group, got {}", base_lrs().size(),
                 lr_lambdas_.size());
  for (const auto& lr_lambda : lr_lambdas_)
    // An empty std::function would throw std::bad_function_call at some later step.
    check_argument(lr_lambda != nullptr, "lr_lambda: expected a function, got an empty one");
}

std::vector<double> FactorSchedule::scaled(std::vector<double> rates) const {
  check_state(rates.size() == lr_lambdas_.size(),
              "the schedule has {} functions, but the optimizer {} parameter groups; add all groups before creating it",
              lr_lambdas_.size(), rates.size());
  for (std::size_t group = 0; group < rates.size(); ++group) rates[group] *= lr_lambdas_[group](last_epoch());
  return rates;
}

// Python writes the __dict__ of callable objects; plain functions become None, one per group.
void FactorSchedule::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields.constant("lr_lambdas", Value::List(lr_lambdas_.size()));
}

// The initial step must be made by the derived class, since it calls the virtual get_lr.
LambdaLR::LambdaLR(ScheduledOptimizer optimizer, EpochFactor lr_lambda)
    : FactorSchedule(std::move(optimizer), std::move(lr_lambda)) {
  initial_step();
}
LambdaLR::LambdaLR(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas)
    : FactorSchedule(std::move(optimizer), std::move(lr_lambdas)) {
  initial_step();
}

std::vector<double> LambdaLR::get_lr(const std::vector<double>& /*current*/) const { return scaled(base_lrs()); }

MultiplicativeLR::MultiplicativeLR(ScheduledOptimizer optimizer, EpochFactor lr_lambda)
    : FactorSchedule(std::move(optimizer), std::move(lr_lambda)) {
  initial_step();
}
MultiplicativeLR::MultiplicativeLR(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas)
    : FactorSchedule(std::move(optimizer), std::move(lr_lambdas)) {
  initial_step();
}

std::vector<double> MultiplicativeLR::get_lr(const std::vector<double>& current) const {
  // Epoch 0 keeps the initial rate, as in Python.
  return is_initial() ? current : scaled(current);
}

}  // namespace accel
