#pragma once

#include <limits>
#include <string>

#include "reference/core/errors.hpp"

/// What the schedules that follow a metric call better, as torch.optim.lr_scheduler.ReduceLROnPlateau has it.
/// Thread rule: pure functions.
namespace accel::detail {

/// An ArgumentError unless `mode` is "min" or "max" and `threshold_mode` "rel" or "abs"; `schedule` is named in it.
inline void check_comparison(const char* schedule, const std::string& mode, const std::string& threshold_mode) {
  check_argument(mode == "min" || mode == "max", "{}: mode: expected min or max, got '{}'", schedule, mode);
  check_argument(threshold_mode == "rel" || threshold_mode == "abs",
                 "{}: threshold_mode: expected rel or abs, got '{}'", schedule, threshold_mode);
}

/// What every number is better than.
inline double worst_metric(const std::string& mode) {
  return (mode == "min" ? 1 : -1) * std::numeric_limits<double>::infinity();
}

inline bool is_better_metric(double metric, double best, const std::string& mode, const std::string& threshold_mode,
                             double threshold) {
  if (threshold_mode == "rel")
    return mode == "min" ? metric < best * (1.0 - threshold) : metric > best * (1.0 + threshold);
  return mode == "min" ? metric < best - threshold : metric > best + threshold;
}

}  // namespace accel::detail
