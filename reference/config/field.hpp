#pragma once

#include <concepts>
#include <limits>
#include <span>
#include <type_traits>

/// Descriptions of the fields of option structs. A struct lists its fields once, in a function that calls `visit` for
/// each of them:
///
///     template <FieldsOf<TextGenerationConfig> Config, typename Visit>
///     void for_each_field(Config& config, Visit&& visit) {
///       visit(Field{"length", at_least_one}, config.length);
///       visit(Field{"mode", {.choices = kModes}}, config.mode);
///     }
///
/// Readers of files and of the environment (field_reader.hpp), checks of values that a program sets (field_checks.hpp)
/// and command lines use this list. Thread rule: values.
namespace accel {

/// The values that a field accepts. Without `accepts` and `choices`: any value of the field's type.
struct FieldRule {
  const char* expected = nullptr;  ///< text for messages, "1 or more"; null: derived from the choices or the type
  bool (*accepts)(double value) = nullptr;    ///< for numbers
  std::span<const char* const> choices = {};  ///< for strings
  bool numbered = false;                      ///< plugins also accept the number of a choice, from 1

  [[nodiscard]] bool operator()(double value) const { return accepts == nullptr || accepts(value); }
};

struct Field {
  const char* name;
  FieldRule rule = {};
  bool is_required = false;
  const char* variable = nullptr;       ///< environment variable that is used if the program does not set the value
  const char* deepspeed_key = nullptr;  ///< key in a DeepSpeed file, such as "zero_optimization.stage"
  const char* fallback = nullptr;       ///< value in a plugin if nothing else sets it
  const char* flag = nullptr;           ///< flag of command lines: "--even-batches,!--no-even-batches"
  const char* help = nullptr;           ///< help text of the flag
  const char* refusal = nullptr;        ///< why a plugin accepts no other value than the fallback; null: it does
};

/// `Options`, const or not.
template <typename T, typename Options>
concept FieldsOf = std::same_as<std::remove_const_t<T>, Options>;

inline constexpr FieldRule at_least_zero{"0 or more", [](double value) { return value >= 0; }};
inline constexpr FieldRule at_least_one{"1 or more", [](double value) { return value >= 1; }};
inline constexpr FieldRule above_zero{"a number above 0", [](double value) { return value > 0; }};
inline constexpr FieldRule finite_at_least_zero{
    "a number of 0 or more", [](double value) { return value >= 0 && value <= std::numeric_limits<double>::max(); }};
inline constexpr FieldRule finite_above_zero{
    "a number above 0", [](double value) { return value > 0 && value <= std::numeric_limits<double>::max(); }};
inline constexpr FieldRule zero_to_one{"a number from 0 to 1", [](double value) { return value >= 0 && value <= 1; }};
inline constexpr FieldRule between_zero_and_one{"a number between 0 and 1",
                                                [](double value) { return value > 0 && value < 1; }};
inline constexpr FieldRule above_zero_to_one{"a number above 0, and 1 at most",
                                             [](double value) { return value > 0 && value <= 1; }};

}  // namespace accel
