#pragma once

#include <cmath>
#include <numbers>

#include "reference/core/errors.hpp"

/// Arithmetic that raises errors as Python's floats do, where C++ would continue with an infinity or NaN. Throws
/// ArgumentError. Thread rule: pure functions.
namespace accel::optim {

inline constexpr double kPi = std::numbers::pi;

/// `what` names the quantity in the error message.
inline double divided(double dividend, double divisor, const char* what) {
  check_argument(divisor != 0.0, "{}: division of {} by zero; expected a divisor other than 0", what, dividend);
  return dividend / divisor;
}

/// base ** exponent.
inline double power(double base, double exponent, const char* what) {
  check_argument(base != 0.0 || exponent >= 0.0, "{}: zero to the power of {}; expected an exponent of 0 or more", what,
                 exponent);
  const double result = std::pow(base, exponent);
  check_argument(!std::isnan(result) || std::isnan(base) || std::isnan(exponent),
                 "{}: {} to the power of {} is not a real number", what, base, exponent);
  check_argument(!std::isinf(result) || std::isinf(base) || std::isinf(exponent),
                 "{}: {} to the power of {} is too large", what, base, exponent);
  return result;
}

}  // namespace accel::optim
