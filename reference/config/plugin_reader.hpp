#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/environment.hpp"
#include "reference/config/field_reader.hpp"

namespace accel {

/// A value as text, and its source: "fsdp_plugin: min_num_params" or "FSDP_MIN_NUM_PARAMS".
struct GivenValue {
  std::string name = {};
  std::string text = {};
};

/// Splits at commas and removes spaces around the parts, as Accelerate does for names of classes.
std::vector<std::string> split_at_commas(const std::string& text);

/// Reads the fields of a plugin, or environment variables for fields that the program does not set. Choices may have
/// any case.
///
///     PluginReader fields("fsdp_plugin", plugin, problems);
///     const auto offloads = fields.value<bool>("cpu_offload").value_or(false);
///
/// Checks only values that are read, because other fields determine which ones are relevant. Thread rule: a value.
class PluginReader : public FieldReader {
 public:
  template <typename Plugin>
  PluginReader(std::string name, const Plugin& plugin, std::vector<std::string>& problems)
      : name_(std::move(name)), problems_(problems) {
    for_each_field(plugin, [&](const Field& field, const auto& value) {
      fields_.emplace(field.name, field);
      if (auto text = text_of(value)) {
        give(field.name, {name_ + ": " + field.name, std::move(*text)});
      } else if (field.variable != nullptr) {
        if (auto set = environment(field.variable)) give(field.name, {field.variable, std::move(*set)});
      }
    });
  }

  /// Returns the value of a field, checked by its rule.
  template <typename T>
  std::optional<T> value(const std::string& key) {
    return optional<T>(key, fields_.at(key).rule);
  }
  [[nodiscard]] std::optional<GivenValue> find(const std::string& key) const;
  /// Returns the text of a field; "" if it has no value.
  [[nodiscard]] std::string text(const std::string& key) const;
  [[nodiscard]] const std::map<std::string, Field>& fields() const { return fields_; }
  void give(const std::string& key, GivenValue value) { values_.insert_or_assign(key, std::move(value)); }
  void remove(const std::string& key) { values_.erase(key); }

  /// Notes expressions that are not regular ones. The engine compiles them when it wraps the model.
  void check_expressions(const char* field, const std::vector<std::string>& expressions);

  [[nodiscard]] bool has(const std::string& key) const override { return values_.contains(key); }
  void problem(const std::string& key, const std::string& text) override;
  void missing(const std::string& key) override { problem(key, "missing"); }
  void finish_keys() override {}  // the environment contains unrelated variables

  template <typename... Args>
  void note(fmt::format_string<Args...> message, Args&&... args) {
    problems_.push_back(fmt::format(message, std::forward<Args>(args)...));
  }

 protected:
  bool convert(const std::string& key, FieldTarget target) const override;
  [[nodiscard]] std::string given(const std::string& key) const override;
  [[nodiscard]] std::optional<std::string> chosen(const FieldRule& rule, const std::string& text) const override;
  [[nodiscard]] std::string choices_of(const FieldRule& rule) const override;

 private:
  // A field that is always set does not fall back to the environment.
  template <typename T>
  static std::optional<std::string> text_of(const T&) {
    return std::nullopt;
  }
  template <typename T>
  static std::optional<std::string> text_of(const std::optional<T>& value) {
    return value ? std::optional(fmt::format("{}", *value)) : std::nullopt;
  }

  std::string name_;
  std::vector<std::string>& problems_;
  std::map<std::string, Field> fields_;
  std::map<std::string, GivenValue> values_;
};

}  // namespace accel
