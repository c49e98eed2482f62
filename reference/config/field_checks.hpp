#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/field_reader.hpp"

/// Checks of values that a program has set against the rules of their fields.
namespace accel {

/// Checks one field: adds "grad_scaler_kwargs: growth_factor: expected a number above 1, got 0.5" to `problems`.
template <typename T>
void check_field(const std::string& prefix, const Field& field, const T& value, std::vector<std::string>& problems) {
  const auto add = [&](const std::string& expected, const std::string& given) {
    problems.push_back(fmt::format("{}{}: expected {}, got {}", prefix, field.name, expected, given));
  };
  const auto& rule = field.rule;
  if constexpr (std::is_arithmetic_v<T>) {
    if (!rule(static_cast<double>(value))) add(rule.expected, fmt::format("{}", value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    const bool is_known =
        rule.choices.empty() || std::find(rule.choices.begin(), rule.choices.end(), value) != rule.choices.end();
    if (!is_known) add(any_of(rule.choices, "'"), fmt::format("'{}'", value));
  }
}
template <typename T>
void check_field(const std::string& prefix, const Field& field, const std::optional<T>& value,
                 std::vector<std::string>& problems) {
  if (value) check_field(prefix, field, *value, problems);
}

/// Checks each field of a struct separately and returns the problems. `prefix` is, for example, "grad_scaler_kwargs: ".
template <typename Options>
std::vector<std::string> problems_of_fields(const std::string& prefix, const Options& options) {
  std::vector<std::string> problems;
  for_each_field(options, [&](const Field& field, const auto& value) { check_field(prefix, field, value, problems); });
  return problems;
}

}  // namespace accel
