#pragma once

#include <map>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"

/// Schedules that multiply the current rate, so that the user's own changes of it go on to count. Arguments and
/// defaults are Python's.
///
///     accel::MultiStepLR scheduler(optimizer, /*milestones=*/{30, 80}, /*gamma=*/0.1);
///
/// Thread rule: the rank's thread. Source: torch/optim/lr_scheduler.py.
namespace accel {

/// The rate times `gamma` after every `step_size` epochs.
class StepLR : public LRScheduler {
 public:
  StepLR(ScheduledOptimizer optimizer, int step_size, double gamma = 0.1);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  int step_size_;
  double gamma_;
};

/// The rate times `gamma` at each milestone; one that is listed n times counts n times.
/// Its state has the milestones' epochs as texts, where Python has numbers as keys.
class MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(ScheduledOptimizer optimizer, const std::vector<int>& milestones, double gamma = 0.1);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  std::map<int, int> milestones_;  // epoch -> how often
  double gamma_;
};

/// The rate times `factor` until epoch `total_iters`.
class ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(ScheduledOptimizer optimizer, double factor = 1.0 / 3, int total_iters = 5);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  double factor_;
  int total_iters_;
};

/// The rate times a factor that goes from `start_factor` to `end_factor` in `total_iters` epochs.
class LinearLR : public LRScheduler {
 public:
  explicit LinearLR(ScheduledOptimizer optimizer, double start_factor = 1.0 / 3, double end_factor = 1.0,
                    int total_iters = 5);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  double start_factor_, end_factor_;
  int total_iters_;
};

/// The rate times `gamma` after every epoch.
class ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(ScheduledOptimizer optimizer, double gamma);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  double gamma_;
};

/// The rate times (1 - epoch / total_iters) ** power; it stays as it is behind `total_iters`.
class PolynomialLR : public LRScheduler {
 public:
  explicit PolynomialLR(ScheduledOptimizer optimizer, int total_iters = 5, double power = 1.0);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(detail::StateFields& fields) override;
  int total_iters_;
  double power_;
};

}  // namespace accel
