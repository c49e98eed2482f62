#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/environment.hpp"

namespace accel {

/// A value as text, and where it is from: "fsdp_plugin: min_num_params" or "FSDP_MIN_NUM_PARAMS".
struct GivenValue {
  std::string name = {};
  std::string text = {};
};

/// Reads the fields of a plugin, from the environment where they have no value. What is wrong is noted with its origin.
///
///     PluginFields fields("fsdp_plugin", problems);
///     const auto version = fields.integer(fields.find("fsdp_version", plugin.fsdp_version, "FSDP_VERSION"), 1,
///     2).value_or(1);
///
/// All that read a value give nothing where none is given, and where it is wrong. Thread rule: a value.
class PluginFields {
 public:
  PluginFields(std::string plugin, std::vector<std::string>& problems)
      : plugin_(std::move(plugin)), problems_(problems) {}

  template <typename T>
  [[nodiscard]] std::optional<GivenValue> find(const char* field, const std::optional<T>& value,
                                               const char* variable) const {
    if (value) return GivenValue{name_of(field), fmt::format("{}", *value)};
    const auto text = environment(variable);
    return text ? std::optional(GivenValue{variable, *text}) : std::nullopt;
  }
  [[nodiscard]] std::string name_of(const char* field) const { return plugin_ + ": " + field; }

  std::optional<bool> flag(const std::optional<GivenValue>& given, const std::string& expected = "true or false");
  std::optional<std::int64_t> integer(const std::optional<GivenValue>& given, std::int64_t min, std::int64_t max,
                                      const std::string& or_else = "");
  std::optional<double> number_above_or_zero(const std::optional<GivenValue>& given);
  /// The one of `names` that is meant, in any case.
  std::optional<std::string> choice(const std::optional<GivenValue>& given, std::initializer_list<const char*> names);
  /// The same, or its number from 1.
  std::optional<std::string> choice_or_number(const std::optional<GivenValue>& given,
                                              std::initializer_list<const char*> names);

  void unexpected(const GivenValue& given, const std::string& expected) {
    problem("{}: expected {}, got '{}'", given.name, expected, given.text);
  }
  template <typename... Args>
  void problem(fmt::format_string<Args...> message, Args&&... args) {
    problems_.push_back(fmt::format(message, std::forward<Args>(args)...));
  }

 private:
  std::string plugin_;
  std::vector<std::string>& problems_;
};

}  // namespace accel
