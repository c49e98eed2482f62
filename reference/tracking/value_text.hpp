#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reference/core/value.hpp"

namespace accel::tracking {

/// A bool, an integer, a float, or the element of a tensor of shape [], on any device; nothing for other values.
std::optional<double> number_of(const Value& value);

/// The shortest text that reads back as the same number, with a point or an exponent: 0.1, 3.0, 1e-05; nan, inf, -inf.
std::string number_text(double value);

/// JSON of one line. Strings that are not UTF-8 have U+FFFD where they are wrong; NaN and infinities, which JSON has
/// not, are the strings "NaN", "Infinity", "-Infinity"; tensors are lists, of shape [] numbers. Thread rule: any
/// thread.
std::string json_text(const Value& value);
std::string json_text(std::string_view text);

/// A tensor as what it holds: a number, or lists of numbers. Other values as they are.
Value without_tensors(const Value& value);

/// A configuration as YAML 1.1: a line for each name, in alphabetical order, lists and dicts in it in braces. PyYAML's
/// and yaml-cpp's readers give the same values back: strings that look like something else are quoted. Tensors are
/// lists. Thread rule: any thread.
std::string yaml_text(const Value::Dict& values);

}  // namespace accel::tracking
