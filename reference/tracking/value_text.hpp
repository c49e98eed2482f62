#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reference/tree/value.hpp"

namespace accel::tracking {

/// Whether `number_of` returns a number. Does not wait for the device of a tensor.
bool is_number(const Value& value);
/// Returns the number in a bool, integer, float or tensor of shape [] on any device; nullopt for other values.
std::optional<double> number_of(const Value& value);

/// Returns the shortest text that reads back as the same number, with a point or an exponent: 0.1, 3.0, 1e-05; nan,
/// inf, -inf.
std::string number_text(double value);

/// Formats JSON on one line. Invalid UTF-8 is replaced by U+FFFD. NaN and infinities, which JSON lacks, become the
/// strings "NaN", "Infinity" and "-Infinity". Tensors become lists, those of shape [] numbers. Thread rule: any thread.
std::string json_text(const Value& value);
std::string json_text(std::string_view text);

/// Converts a tensor to a number or nested lists of numbers. Returns other values unchanged.
Value without_tensors(const Value& value);

/// Formats a configuration as YAML 1.1 with one line per name in alphabetical order; nested lists and dicts use flow
/// style. Strings that could be parsed as another type are quoted, so that PyYAML and yaml-cpp read back the same
/// values. Tensors become lists. Thread rule: any thread.
std::string yaml_text(const Value::Dict& values);

}  // namespace accel::tracking
