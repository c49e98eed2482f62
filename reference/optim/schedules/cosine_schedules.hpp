#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

/// Schedules along a cosine. Arguments and defaults are Python's.
///
///     accel::CosineAnnealingLR scheduler(optimizer, /*T_max=*/100, /*eta_min=*/1e-5);
///
/// Thread rule: the rank's thread. Source: torch/optim/lr_scheduler.py.
namespace accel {

struct CosineAnnealingLROptions {
  int T_max = 0;
  double eta_min = 0.0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"T_max", &CosineAnnealingLROptions::T_max, kCountAboveZero, Presence::kRequired},
                      OptionField{"eta_min", &CosineAnnealingLROptions::eta_min, kFiniteAtLeastZero}};
  }
};

/// From the current rate to `eta_min` in `T_max` epochs, and back.
class CosineAnnealingLR : public LRScheduler {
 public:
  using Options = CosineAnnealingLROptions;
  CosineAnnealingLR(ScheduledOptimizer optimizer, int T_max, double eta_min = Options().eta_min);
  CosineAnnealingLR(ScheduledOptimizer optimizer, const Options& options)
      : CosineAnnealingLR(std::move(optimizer), options.T_max, options.eta_min) {}

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_closed_form_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  int T_max_;
  double eta_min_;
};

struct CosineAnnealingWarmRestartsOptions {
  int T_0 = 0, T_mult = 1;
  double eta_min = 0.0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{
        OptionField{"T_0", &CosineAnnealingWarmRestartsOptions::T_0, kCountAboveZero, Presence::kRequired},
        OptionField{"T_mult", &CosineAnnealingWarmRestartsOptions::T_mult, kCountAboveZero},
        OptionField{"eta_min", &CosineAnnealingWarmRestartsOptions::eta_min, kFiniteAtLeastZero}};
  }
};

/// From the initial rate to `eta_min` in `T_0` epochs, then again from the start, each time over `T_mult` times as many
/// epochs. As in Python, `step_count` does not count its steps. Fractional epochs are allowed, for steps per batch:
///
///     scheduler.step(epoch + static_cast<double>(batch) / num_batches);
class CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  using Options = CosineAnnealingWarmRestartsOptions;
  CosineAnnealingWarmRestarts(ScheduledOptimizer optimizer, int T_0, int T_mult = Options().T_mult,
                              double eta_min = Options().eta_min);
  CosineAnnealingWarmRestarts(ScheduledOptimizer optimizer, const Options& options)
      : CosineAnnealingWarmRestarts(std::move(optimizer), options.T_0, options.T_mult, options.eta_min) {}
  void step() override;
  /// Sets the rates of any epoch, also a fractional one. Throws ArgumentError for a negative epoch.
  void step(double epoch) override;

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  int T_0_, T_mult_;
  std::int64_t T_i_;  // 64 bits, because it grows by T_mult with every restart
  double eta_min_;
  double T_cur_;
};

}  // namespace accel
