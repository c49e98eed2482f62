#pragma once

#include <limits>
#include <string>

#include "reference/core/errors.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

/// Which metric is better, for the schedules that follow one. Thread rule: pure functions.
/// Source: torch/optim/lr_scheduler.py, ReduceLROnPlateau.
namespace accel::optim {

inline constexpr Allowed<std::string> kMetricModes{
    [](const std::string& mode) { return mode == "min" || mode == "max"; }, "min or max"};
inline constexpr Allowed<std::string> kThresholdModes{
    [](const std::string& mode) { return mode == "rel" || mode == "abs"; }, "rel or abs"};

/// Throws ArgumentError for a mode of another name; the message names `schedule`.
inline void check_comparison(const char* schedule, const std::string& mode, const std::string& threshold_mode) {
  check_argument(kMetricModes.holds(mode), "{}: mode: expected {}, got '{}'", schedule, kMetricModes.expected, mode);
  check_argument(kThresholdModes.holds(threshold_mode), "{}: threshold_mode: expected {}, got '{}'", schedule,
                 kThresholdModes.expected, threshold_mode);
}

/// Every number is better than this.
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
