#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "reference/config/launch_config.hpp"

/// One setting of a launch: what it is called, and what it takes. The rows are in launch_keys.hpp.
///
/// Thread rule: constants.
namespace accel {

enum class KeyKind {
  kFlag,
  kInt,
  kInteger,  ///< of 64 bits
  kNumber,
  kNumberOrAuto,
  kSeconds,  ///< above 0
  kText,     ///< with choices: one of them, as it is spelled
  kFlagOrText,
  kChoice,  ///< one of the choices in any case, or its number from 1
  kFlags,   ///< three
  kTexts    ///< only in a file
};

/// The member of LaunchConfig that holds a key; none: the key is in a section, or is a flag alone.
using LaunchField = std::variant<std::monostate, bool LaunchConfig::*, int LaunchConfig::*, std::string LaunchConfig::*,
                                 std::optional<int> LaunchConfig::*, std::optional<std::string> LaunchConfig::*,
                                 std::optional<std::vector<std::string>> LaunchConfig::*,
                                 std::variant<bool, std::string> LaunchConfig::*, ConfigSection LaunchConfig::*>;

/// A row: name, kind and help, then what the setting has besides.
///
///     LaunchKey("fsdp_version", kInteger, "Whose names the other keys are")
///         .one_of(kFsdpVersions)
///         .in_variable("FSDP_VERSION", "1")
///         .asked("What should be your FSDP version?", "2")
struct LaunchKey {
  constexpr LaunchKey(const char* key, KeyKind kind_of_value, const char* text = "")
      : name(key), kind(kind_of_value), help(text) {}
  template <typename T>
  constexpr LaunchKey(const char* key, T LaunchConfig::*member, const char* text = "")
      : name(key), kind(kind_of<T>()), help(text), field(member) {}

  [[nodiscard]] constexpr LaunchKey one_of(std::initializer_list<const char*> names) const {
    auto key = *this;
    key.choices = names;
    return key;
  }
  /// Ranks learn the value by a variable, which is `otherwise` where no value is given, or else not set.
  [[nodiscard]] constexpr LaunchKey in_variable(const char* variable_name, const char* otherwise = nullptr) const {
    auto key = *this;
    key.variable = variable_name;
    key.fallback = otherwise;
    return key;
  }
  /// The same of a member that is true or false, with the text for true.
  [[nodiscard]] constexpr LaunchKey sets(const char* variable_name, const char* text,
                                         const char* otherwise = nullptr) const {
    auto key = in_variable(variable_name, otherwise);
    key.text_of_true = text;
    return key;
  }
  [[nodiscard]] constexpr LaunchKey defaults_to(const char* text) const {
    auto key = *this;
    key.launch_default = text;
    return key;
  }
  [[nodiscard]] constexpr LaunchKey asked(const char* text, const char* default_answer = nullptr) const {
    auto key = *this;
    key.question = text;
    key.answer = default_answer;
    return key;
  }
  [[nodiscard]] constexpr LaunchKey short_as(char letter) const {
    auto key = *this;
    key.short_name = letter;
    return key;
  }

  const char* name;  ///< of the key and of the flag
  KeyKind kind;
  const char* help;  ///< "": accepted for Python's sake, and not listed by `accel config --help`
  LaunchField field = {};
  std::initializer_list<const char*> choices = {};
  const char* variable = nullptr;  ///< null: only the launcher reads it; of kFlags the first letters of three
  const char* fallback = nullptr;
  const char* text_of_true = nullptr;
  const char* launch_default = nullptr;  ///< what `accel launch --help` says of the default
  const char* question = nullptr;        ///< of `accel config`, with the answer that enter gives; null: required
  const char* answer = nullptr;
  char short_name = 0;  ///< 'q': -q

 private:
  template <typename T>
  static constexpr KeyKind kind_of() {
    if (std::is_same_v<T, bool>) return KeyKind::kFlag;
    if (std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>) return KeyKind::kInt;
    if (std::is_same_v<T, std::variant<bool, std::string>>) return KeyKind::kFlagOrText;
    return std::is_same_v<T, std::optional<std::vector<std::string>>> ? KeyKind::kTexts : KeyKind::kText;
  }
};

/// The help with the choices: "Whose names the other keys are: 1, 2".
std::string help_of(const LaunchKey& key);
/// What a key takes: "true or false".
std::string expected_of(const LaunchKey& key);
bool fits(const LaunchKey& key, const ConfigValue& value);
/// Puts a text that fits into the member of the key.
void assign_text(LaunchConfig& config, const LaunchKey& key, const std::string& text);

/// A value of kFlags, as a list or as the text "(true, false, false)"; nothing if it is none.
std::optional<std::array<bool, 3>> three_flags(const ConfigValue& value);

}  // namespace accel
