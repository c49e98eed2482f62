#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"

/// Schedules whose factor is a user-defined function.
///
///     accel::LambdaLR scheduler(optimizer, [](int epoch) { return std::max(0.0, 1.0 - epoch / 100.0); });
///     accel::LambdaLR two_groups(optimizer, {slow, fast});
///
/// As in Python, the state dict does not contain the functions; the schedule that loads it provides its own. Thread
/// rule: the rank's thread. Source: torch/optim/lr_scheduler.py, LambdaLR and MultiplicativeLR.
namespace accel {

using EpochFactor = std::function<double(int epoch)>;

/// The common base: one function for all parameter groups, or one per group.
class FactorSchedule : public LRScheduler {
 protected:
  FactorSchedule(ScheduledOptimizer optimizer, EpochFactor lr_lambda);
  FactorSchedule(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas);
  /// Multiplies each rate by its group's factor for `last_epoch()`.
  [[nodiscard]] std::vector<double> scaled(std::vector<double> rates) const;

 private:
  void state_fields(optim::StateFields& fields) override;

  std::vector<EpochFactor> lr_lambdas_;
};

/// The initial rate times `lr_lambda(epoch)`.
class LambdaLR : public FactorSchedule {
 public:
  LambdaLR(ScheduledOptimizer optimizer, EpochFactor lr_lambda);
  LambdaLR(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
};

/// The rate times `lr_lambda(epoch)`, from epoch 1 on.
class MultiplicativeLR : public FactorSchedule {
 public:
  MultiplicativeLR(ScheduledOptimizer optimizer, EpochFactor lr_lambda);
  MultiplicativeLR(ScheduledOptimizer optimizer, std::vector<EpochFactor> lr_lambdas);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
};

}  // namespace accel
