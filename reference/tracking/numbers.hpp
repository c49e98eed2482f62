#pragma once

#include <optional>
#include <string>

#include "reference/core/value.hpp"

namespace accel::tracking {

/// A bool, an integer, a float, or the element of a tensor of shape [], on any device; nothing for other values.
std::optional<double> number_of(const Value& value);

/// The shortest text that reads back as the same number, with a point or an exponent: 0.1, 3.0, 1e-05; nan, inf, -inf.
std::string number_text(double value);

}  // namespace accel::tracking
