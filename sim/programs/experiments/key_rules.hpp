#pragma once

#include <cmath>

/// What values of experiment files are checked by.
namespace accel::programs {

inline constexpr auto at_least_zero = [](const auto& value) { return value >= 0; };
inline constexpr auto at_least_one = [](const auto& value) { return value >= 1; };
inline constexpr auto finite_at_least_zero = [](const double& value) { return std::isfinite(value) && value >= 0; };
inline constexpr auto finite_above_zero = [](const double& value) { return std::isfinite(value) && value > 0; };
inline constexpr auto zero_to_one = [](const double& value) { return value >= 0 && value <= 1; };
inline constexpr auto above_zero_to_one = [](const double& value) { return value > 0 && value <= 1; };

}  // namespace accel::programs
