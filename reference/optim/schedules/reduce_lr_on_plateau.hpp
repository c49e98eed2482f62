#pragma once

#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

namespace accel::optim {

// Comparison of metrics, for the schedules that follow one. Thread rule: pure functions.
// Source: torch/optim/lr_scheduler.py, ReduceLROnPlateau.

inline constexpr Allowed<std::string> kMetricModes{
    [](const std::string& mode) { return mode == "min" || mode == "max"; }, "min or max"};
inline constexpr Allowed<std::string> kThresholdModes{
    [](const std::string& mode) { return mode == "rel" || mode == "abs"; }, "rel or abs"};

/// Throws ArgumentError for an unknown mode; the message starts with `schedule`.
inline void check_comparison(const char* schedule, const std::string& mode, const std::string& threshold_mode) {
  check_argument(kMetricModes.holds(mode), "{}: mode: expected {}, got '{}'", schedule, kMetricModes.expected, mode);
  check_argument(kThresholdModes.holds(threshold_mode), "{}: threshold_mode: expected {}, got '{}'", schedule,
                 kThresholdModes.expected, threshold_mode);
}

/// The initial value of the best metric, which every number improves on.
inline double worst_metric(const std::string& mode) {
  return (mode == "min" ? 1 : -1) * std::numeric_limits<double>::infinity();
}

inline bool is_better_metric(double metric, double best, const std::string& mode, const std::string& threshold_mode,
                             double threshold) {
  if (threshold_mode == "rel")
    return mode == "min" ? metric < best * (1.0 - threshold) : metric > best * (1.0 + threshold);
  return mode == "min" ? metric < best - threshold : metric > best + threshold;
}

}  // namespace accel::optim

namespace accel {

struct ReduceLROnPlateauOptions {
  std::string mode = "min";  ///< or "max": which metric is better
  double factor = 0.1;
  int patience = 10;  ///< number of epochs without a better metric that are tolerated
  double threshold = 1e-4;
  std::string threshold_mode = "rel";  ///< or "abs"
  int cooldown = 0;                    ///< epochs after a reduction that are not counted
  PerGroup min_lr = 0.0;
  double eps = 1e-8;  ///< smaller reductions are skipped

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"mode", &ReduceLROnPlateauOptions::mode, kMetricModes},
                      OptionField{"factor", &ReduceLROnPlateauOptions::factor, kBetweenZeroAndOne},
                      OptionField{"patience", &ReduceLROnPlateauOptions::patience, kCount},
                      OptionField{"threshold", &ReduceLROnPlateauOptions::threshold, kFiniteAtLeastZero},
                      OptionField{"threshold_mode", &ReduceLROnPlateauOptions::threshold_mode, kThresholdModes},
                      OptionField{"cooldown", &ReduceLROnPlateauOptions::cooldown, kCount},
                      OptionField{"min_lr", &ReduceLROnPlateauOptions::min_lr, kFiniteAtLeastZero},
                      OptionField{"eps", &ReduceLROnPlateauOptions::eps, kFiniteAtLeastZero}};
  }
};

/// Multiplies the rate by `factor` when a metric has stopped improving.
///
///     accel::ReduceLROnPlateau scheduler(optimizer, {.mode = "max", .patience = 3});
///     scheduler.step(accuracy);
///
/// Every rank must pass the same metric, or the ranks' rates differ. Thread rule: the rank's thread. Source:
/// torch/optim/lr_scheduler.py, ReduceLROnPlateau.
class ReduceLROnPlateau : public LRScheduler {
 public:
  using Options = ReduceLROnPlateauOptions;
  explicit ReduceLROnPlateau(ScheduledOptimizer optimizer, const Options& options = {});
  void step(double metric) override;
  /// Throws ArgumentError, because this schedule requires a metric.
  void step() override;

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  bool is_better(double metric) const;
  void state_fields(optim::StateFields& fields) override;
  void loaded() override { init_mode_worse(); }
  void init_mode_worse();

  double factor_;
  std::optional<double> default_min_lr_;
  std::vector<double> min_lrs_;
  int patience_, cooldown_;
  double eps_;
  std::string mode_, threshold_mode_;
  double threshold_;
  double mode_worse_ = 0.0, best_ = 0.0;
  int cooldown_counter_ = 0, num_bad_epochs_ = 0;
};

}  // namespace accel
