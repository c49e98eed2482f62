#include "reference/config/plugin_fields.hpp"
#include "reference/core/letter_case.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace accel {
namespace {

template <typename T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional<T>(value) : std::nullopt;
}

std::optional<std::string> found(const std::string& text, std::initializer_list<const char*> names) {
  const auto* name = std::find_if(names.begin(), names.end(), [lower = lower_case(text)](const char* candidate) {
    return lower == lower_case(candidate);
  });
  return name == names.end() ? std::nullopt : std::optional<std::string>(*name);
}

}  // namespace

std::optional<bool> PluginFields::flag(const std::optional<GivenValue>& given, const std::string& expected) {
  if (!given) return std::nullopt;
  const auto value = flag_of(given->text);
  if (!value) unexpected(*given, expected);
  return value;
}

std::optional<std::int64_t> PluginFields::integer(const std::optional<GivenValue>& given, std::int64_t min,
                                                  std::int64_t max, const std::string& or_else) {
  if (!given) return std::nullopt;
  const auto value = parsed<std::int64_t>(given->text);
  if (value && *value >= min && *value <= max) return value;
  const auto range =
      max - min < 10 ? fmt::format("{} to {}", min, max) : fmt::format("an integer from {} to {}", min, max);
  unexpected(*given, range + or_else);
  return std::nullopt;
}

std::optional<double> PluginFields::number_above_or_zero(const std::optional<GivenValue>& given) {
  if (!given) return std::nullopt;
  const auto value = parsed<double>(given->text);
  if (value && std::isfinite(*value) && *value >= 0) return value;
  unexpected(*given, "a number of 0 or more, or \"auto\"");
  return std::nullopt;
}

std::optional<std::string> PluginFields::choice(const std::optional<GivenValue>& given,
                                                std::initializer_list<const char*> names) {
  if (!given) return std::nullopt;
  auto name = found(given->text, names);
  if (!name) unexpected(*given, fmt::format("{}", fmt::join(names, ", ")));
  return name;
}

std::optional<std::string> PluginFields::choice_or_number(const std::optional<GivenValue>& given,
                                                          std::initializer_list<const char*> names) {
  if (!given) return std::nullopt;
  const auto number = parsed<std::size_t>(given->text);
  if (number && *number >= 1 && *number <= names.size()) return names.begin()[*number - 1];
  auto name = found(given->text, names);
  if (!name) unexpected(*given, fmt::format("{} or 1 to {}", fmt::join(names, ", "), names.size()));
  return name;
}

}  // namespace accel
