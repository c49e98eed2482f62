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

/// Where a value that is read goes.
using FieldTarget = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, std::vector<int>*,
                                 std::vector<double>*, std::vector<std::string>*>;

/// Reads named values of one source strictly: a YAML mapping, a JSON object, a plugin and the environment, a section of
/// a DeepSpeed file. Every problem (unknown key, wrong type, impossible value, missing key) is noted, in the words and
/// with the place of the source; none is thrown.
///
///     auto epochs = reader.required<int>("epochs", at_least_one);
///     reader.read(options);       // all that for_each_field lists
///     reader.finish_keys();
///
/// Thread rule: a value.
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  /// The value of a key, or nothing if it is absent, null or wrong.
  template <typename T>
  std::optional<T> optional(const std::string& key, const FieldRule& rule = {}) {
    T value{};
    return !skips_null(key) && read_value(key, &value, rule) ? std::optional<T>(std::move(value)) : std::nullopt;
  }
  /// The same with another check, which may be null. `expected`: what the value has to be; empty: what its type says.
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

  /// Into a field, which keeps its value where the key is absent or wrong.
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
  /// Into all fields of a struct.
  template <typename Options>
  void read(Options& options) {
    for_each_field(options, [&](const Field& field, auto& value) { read(field, value); });
  }
  /// The same, of the right type but not checked otherwise: for a struct whose `problems_of` does that.
  template <typename Options>
  void read_unchecked(Options& options) {
    for_each_field(options, [&](const Field& field, auto& value) {
      read(Field{.name = field.name, .is_required = field.is_required}, value);
    });
  }

  /// Whether the source gives a value for a key.
  [[nodiscard]] virtual bool has(const std::string& key) const = 0;
  virtual void problem(const std::string& key, const std::string& text) = 0;
  virtual void missing(const std::string& key) = 0;
  /// Notes the keys that nobody asked for.
  virtual void finish_keys() = 0;

 protected:
  FieldReader() = default;
  FieldReader(const FieldReader&) = default;
  FieldReader(FieldReader&&) = default;
  FieldReader& operator=(const FieldReader&) = delete;
  FieldReader& operator=(FieldReader&&) = delete;

  /// The value of a key that is there; false if it is of another type.
  virtual bool convert(const std::string& key, FieldTarget target) const = 0;
  /// The end of a message about a key that is there: ", got 'many'".
  [[nodiscard]] virtual std::string given(const std::string& key) const = 0;
  /// Whether an optional field is left without a value.
  [[nodiscard]] virtual bool is_null(const std::string& /*key*/) const { return false; }
  /// "an integer".
  [[nodiscard]] virtual std::string type_name(const std::string& key, FieldTarget target) const;
  /// The choice that a text means; nothing if it means none.
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

/// "mlp or cnn", "'no', 'fp16' or 'bf16'": words in a row, each between `quote`.
std::string any_of(std::span<const char* const> words, const char* quote = "");

}  // namespace accel
