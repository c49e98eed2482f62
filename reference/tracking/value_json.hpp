#pragma once

#include <string>
#include <string_view>

#include "reference/core/value.hpp"

namespace accel::tracking {

/// JSON of one line. Strings that are not UTF-8 have U+FFFD where they are wrong; NaN and infinities, which JSON has
/// not, are the strings "NaN", "Infinity", "-Infinity"; tensors are lists, of shape [] numbers. Thread rule: any
/// thread.
std::string json_text(const Value& value);
std::string json_text(std::string_view text);

/// A tensor as what it holds: a number, or lists of numbers. Other values as they are.
Value without_tensors(const Value& value);

}  // namespace accel::tracking
