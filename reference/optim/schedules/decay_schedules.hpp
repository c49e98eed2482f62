#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

/// Schedules that multiply the current rate, so that changes by the user remain effective. Arguments and defaults are
/// Python's.
///
///     accel::MultiStepLR scheduler(optimizer, /*milestones=*/{30, 80}, /*gamma=*/0.1);
///
/// Thread rule: the rank's thread. Source: torch/optim/lr_scheduler.py.
namespace accel {

struct StepLROptions {
  int step_size = 0;
  double gamma = 0.1;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"step_size", &StepLROptions::step_size, kCountAboveZero, Presence::kRequired},
                      OptionField{"gamma", &StepLROptions::gamma, kFiniteAtLeastZero}};
  }
};

/// Multiplies the rate by `gamma` after every `step_size` epochs.
class StepLR : public LRScheduler {
 public:
  using Options = StepLROptions;
  StepLR(ScheduledOptimizer optimizer, int step_size, double gamma = Options().gamma);
  StepLR(ScheduledOptimizer optimizer, const Options& options)
      : StepLR(std::move(optimizer), options.step_size, options.gamma) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  int step_size_;
  double gamma_;
};

struct MultiStepLROptions {
  std::vector<int> milestones = {};
  double gamma = 0.1;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"milestones", &MultiStepLROptions::milestones, Presence::kRequired},
                      OptionField{"gamma", &MultiStepLROptions::gamma, kFiniteAtLeastZero}};
  }
};

/// Multiplies the rate by `gamma` at each milestone; one that is listed n times counts n times. Its state stores the
/// milestones' epochs as text, where Python has integer keys.
class MultiStepLR : public LRScheduler {
 public:
  using Options = MultiStepLROptions;
  MultiStepLR(ScheduledOptimizer optimizer, const std::vector<int>& milestones, double gamma = Options().gamma);
  MultiStepLR(ScheduledOptimizer optimizer, const Options& options)
      : MultiStepLR(std::move(optimizer), options.milestones, options.gamma) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  std::map<int, int> milestones_;  // epoch -> how often it is listed
  double gamma_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  int total_iters = 5;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"factor", &ConstantLROptions::factor, kAboveZeroToOne},
                      OptionField{"total_iters", &ConstantLROptions::total_iters, kCountAboveZero}};
  }
};

/// Multiplies the rate by `factor` until epoch `total_iters`.
class ConstantLR : public LRScheduler {
 public:
  using Options = ConstantLROptions;
  explicit ConstantLR(ScheduledOptimizer optimizer, double factor = Options().factor,
                      int total_iters = Options().total_iters);
  ConstantLR(ScheduledOptimizer optimizer, const Options& options)
      : ConstantLR(std::move(optimizer), options.factor, options.total_iters) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  double factor_;
  int total_iters_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3, end_factor = 1.0;
  int total_iters = 5;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"start_factor", &LinearLROptions::start_factor, kAboveZeroToOne},
                      OptionField{"end_factor", &LinearLROptions::end_factor, kFromZeroToOne},
                      OptionField{"total_iters", &LinearLROptions::total_iters, kCountAboveZero}};
  }
};

/// Multiplies the rate by a factor that changes from `start_factor` to `end_factor` over `total_iters` epochs.
class LinearLR : public LRScheduler {
 public:
  using Options = LinearLROptions;
  explicit LinearLR(ScheduledOptimizer optimizer, double start_factor = Options().start_factor,
                    double end_factor = Options().end_factor, int total_iters = Options().total_iters);
  LinearLR(ScheduledOptimizer optimizer, const Options& options)
      : LinearLR(std::move(optimizer), options.start_factor, options.end_factor, options.total_iters) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  double start_factor_, end_factor_;
  int total_iters_;
};

struct ExponentialLROptions {
  double gamma = 0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"gamma", &ExponentialLROptions::gamma, kFiniteAtLeastZero, Presence::kRequired}};
  }
};

/// Multiplies the rate by `gamma` after every epoch.
class ExponentialLR : public LRScheduler {
 public:
  using Options = ExponentialLROptions;
  ExponentialLR(ScheduledOptimizer optimizer, double gamma);
  ExponentialLR(ScheduledOptimizer optimizer, const Options& options)
      : ExponentialLR(std::move(optimizer), options.gamma) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  double gamma_;
};

struct PolynomialLROptions {
  int total_iters = 5;
  double power = 1.0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"total_iters", &PolynomialLROptions::total_iters, kCountAboveZero},
                      OptionField{"power", &PolynomialLROptions::power, kFiniteAtLeastZero}};
  }
};

/// Multiplies the initial rate by (1 - epoch / total_iters) ** power; constant after `total_iters`.
class PolynomialLR : public LRScheduler {
 public:
  using Options = PolynomialLROptions;
  explicit PolynomialLR(ScheduledOptimizer optimizer, int total_iters = Options().total_iters,
                        double power = Options().power);
  PolynomialLR(ScheduledOptimizer optimizer, const Options& options)
      : PolynomialLR(std::move(optimizer), options.total_iters, options.power) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  int total_iters_;
  double power_;
};

}  // namespace accel
