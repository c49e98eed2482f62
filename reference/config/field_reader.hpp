#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/config/field.hpp"

namespace accel {

/// Destination of a value.
using FieldTarget = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, std::vector<int>*,
                                 std::vector<double>*, std::vector<std::string>*>;

/// Reads named values of a source strictly: a YAML mapping, a JSON object, a plugin and the environment, or a section
/// of a DeepSpeed file. All problems (unknown key, wrong type, value out of range, missing key) are collected with
/// their location in the source; none is thrown.
///
///     auto epochs = reader.required<int>("epochs", at_least_one);
///     reader.read(options);       // all fields that for_each_field lists
///     reader.finish_keys();
///
/// Thread rule: a value.
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  /// Returns the value of a key, or nullopt if it is absent, null or wrong.
  template <typename T>
  std::optional<T> optional(const std::string& key, const FieldRule& rule = {}) {
    T value{};
    return !skips_null(key) && read_value(key, &value, rule) ? std::optional<T>(std::move(value)) : std::nullopt;
  }
  /// The same with a custom check, which may be null. `expected` describes the accepted values in messages; empty:
  /// derived from the type.
  template <typename T>
  std::optional<T> optional(const std::string& key, const std::function<bool(const T&)>& check,
                            const std::string& expected = "") {
    T value{};
    const auto accepts = [&] { return !check || check(value); };
    return read_value(key, &value, accepts, expected) ? std::optional<T>(std::move(value)) : std::nullopt;
  }
  template <typename T, typename... Rule>
  T required(const std::string& key, const Rule&... rule) {
    const bool is_present = has(key);
    auto value = optional<T>(key, rule...);
    if (!is_present) missing(key);
    return value.value_or(T{});
  }

  /// Reads into a field, which keeps its value if the key is absent or wrong.
  template <typename T>
  void read(const Field& field, T& value) {
    T given{};
    const bool is_present = has(field.name);
    if (read_value(field.name, &given, field.rule)) value = std::move(given);
    if (field.is_required && !is_present) missing(field.name);
  }
  template <typename T>
  void read(const Field& field, std::optional<T>& value) {
    const bool is_present = has(field.name);
    if (auto given = optional<T>(field.name, field.rule)) value = std::move(given);
    if (field.is_required && !is_present) missing(field.name);
  }
  /// Reads all fields of a struct.
  template <typename Options>
  void read(Options& options) {
    for_each_field(options, [&](const Field& field, auto& value) { read(field, value); });
  }
  /// The same, but checks only the types: for a struct whose `problems_of` checks the values.
  template <typename Options>
  void read_unchecked(Options& options) {
    for_each_field(options, [&](const Field& field, auto& value) {
      read(Field{.name = field.name, .is_required = field.is_required}, value);
    });
  }

  /// True if the source contains a value for the key.
  [[nodiscard]] virtual bool has(const std::string& key) const = 0;
  virtual void problem(const std::string& key, const std::string& text) = 0;
  virtual void missing(const std::string& key) = 0;
  /// Reports the keys of the source that nobody has read.
  virtual void finish_keys() = 0;

 protected:
  FieldReader() = default;
  FieldReader(const FieldReader&) = default;
  FieldReader(FieldReader&&) = default;
  FieldReader& operator=(const FieldReader&) = delete;
  FieldReader& operator=(FieldReader&&) = delete;

  /// Converts the value of an existing key; returns false if it has another type.
  virtual bool convert(const std::string& key, FieldTarget target) const = 0;
  /// Returns the end of a message about an existing key: ", got 'many'".
  [[nodiscard]] virtual std::string given(const std::string& key) const = 0;
  /// True if the value is an explicit null, which leaves an optional field unset.
  [[nodiscard]] virtual bool is_null(const std::string& /*key*/) const { return false; }
  /// Returns the name of a type for messages: "an integer".
  [[nodiscard]] virtual std::string type_name(const std::string& key, FieldTarget target) const;
  /// Returns the choice that matches a text; nullopt if none does.
  [[nodiscard]] virtual std::optional<std::string> chosen(const FieldRule& rule, const std::string& text) const;
  [[nodiscard]] virtual std::string choices_of(const FieldRule& rule) const;

  [[nodiscard]] const std::set<std::string>& known() const { return known_; }
  void know(const std::string& key) { known_.insert(key); }

 private:
  bool skips_null(const std::string& key) {
    know(key);
    return is_null(key);
  }
  bool read_value(const std::string& key, FieldTarget target, const FieldRule& rule);
  bool read_value(const std::string& key, FieldTarget target, const std::function<bool()>& accepts,
                  const std::string& expected);
  bool meets(FieldTarget target, const FieldRule& rule) const;

  std::set<std::string> known_;
};

/// Joins words to "mlp or cnn" or, with `quote`, "'no', 'fp16' or 'bf16'".
std::string any_of(std::span<const char* const> words, const char* quote = "");

}  // namespace accel
