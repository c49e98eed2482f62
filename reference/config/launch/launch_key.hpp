#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "reference/config/field.hpp"
#include "reference/config/launch/launch_config.hpp"

/// Description of one setting of a launch: its name and its values. The table is in launch_keys.cpp and
/// launch_sections.cpp.
///
/// Thread rule: constants.
namespace accel {

enum class KeyKind {
  kFlag,
  kInt,
  kInteger,  ///< 64-bit
  kNumber,
  kNumberOrAuto,
  kSeconds,  ///< above 0
  kText,     ///< with choices: one of them, in this spelling
  kFlagOrText,
  kChoice,  ///< one of the choices in any case, or its number from 1
  kFlags,   ///< three flags
  kTexts    ///< a list of strings; only in a file
};

/// The member of LaunchConfig that stores a key; monostate: the key is in a section, or exists only as a flag.
using LaunchField = std::variant<std::monostate, bool LaunchConfig::*, int LaunchConfig::*, std::string LaunchConfig::*,
                                 std::optional<int> LaunchConfig::*, std::optional<std::string> LaunchConfig::*,
                                 std::optional<std::vector<std::string>> LaunchConfig::*,
                                 std::variant<bool, std::string> LaunchConfig::*, ConfigSection LaunchConfig::*>;

/// A field that a plugin of the ranks reads from a variable, and the kind of its values.
struct PluginField {
  Field field;
  KeyKind kind;
};

/// A row of the table: name, kind and help, followed by optional properties. A member or a field instead of the kind
/// gives it; a field also gives the choices and the variable.
///
///     LaunchKey("config_file", kText, "File written by `accel config`")
///     LaunchKey("fsdp_version", field_of(&FullyShardedDataParallelPlugin::fsdp_version), "FSDP version")
///         .one_of(kFsdpVersions)
///         .otherwise("1")
///         .asked("What should be your FSDP version?", "2")
struct LaunchKey {
  constexpr LaunchKey(const char* key, KeyKind kind_of_value, const char* text = "")
      : name(key), kind(kind_of_value), help(text) {}
  template <typename T>
  constexpr LaunchKey(const char* key, T LaunchConfig::*member, const char* text = "")
      : name(key), kind(kind_of<T>()), help(text), field(member) {}
  constexpr LaunchKey(const char* key, const PluginField& of_plugin, const char* text)
      : name(key),
        kind(of_plugin.kind),
        help(text),
        choices(of_plugin.field.rule.choices),
        variable(of_plugin.field.variable) {}

  [[nodiscard]] constexpr LaunchKey one_of(std::span<const char* const> names) const {
    auto key = *this;
    key.choices = names;
    return key;
  }
  /// The file and the flag accept what the ranks may refuse: any value of this kind.
  [[nodiscard]] constexpr LaunchKey as(KeyKind wider_kind) const {
    auto key = one_of({});
    key.kind = wider_kind;
    return key;
  }
  /// Passes the value to ranks in a variable. Without a value the variable is `text`, or unset if that is null.
  [[nodiscard]] constexpr LaunchKey in_variable(const char* variable_name, const char* text = nullptr) const {
    auto key = otherwise(text);
    key.variable = variable_name;
    return key;
  }
  /// Without a value, the field's variable is `text`, as Accelerate's launcher sets it.
  [[nodiscard]] constexpr LaunchKey otherwise(const char* text) const {
    auto key = *this;
    key.fallback = text;
    return key;
  }
  /// The same as in_variable for a boolean member; `text` is the value of the variable for true.
  [[nodiscard]] constexpr LaunchKey sets(const char* variable_name, const char* text,
                                         const char* without_value = nullptr) const {
    auto key = in_variable(variable_name, without_value);
    key.true_text = text;
    return key;
  }
  /// Nothing here reads the value, for `reason`. As a flag it is refused; in the file and in the variable it is a
  /// warning, unless it is the fallback or `harmless`, which ask for what happens anyway.
  [[nodiscard]] constexpr LaunchKey unused(const char* reason, const char* harmless_value = nullptr) const {
    auto key = *this;
    key.unused_reason = reason;
    key.harmless = harmless_value;
    return key;
  }
  /// The same, but an error in the file too, since the launch would not be what the file describes.
  [[nodiscard]] constexpr LaunchKey refused(const char* reason, const char* harmless_value = nullptr) const {
    auto key = unused(reason, harmless_value);
    key.is_refused = true;
    return key;
  }
  /// As a flag it is refused beside one of these flags, which start ranks in a way that does not use the value.
  [[nodiscard]] constexpr LaunchKey not_with(std::span<const char* const> flags) const {
    auto key = *this;
    key.refused_beside = flags;
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

  const char* name;  ///< name of the key and of the flag
  KeyKind kind;
  const char* help;  ///< "": accepted for compatibility with Python, and not listed by `accel config --help`
  LaunchField field = {};
  std::span<const char* const> choices = {};
  const char* variable =
      nullptr;  ///< null: only the launcher uses the value; for kFlags the common prefix of three variables
  const char* fallback = nullptr;
  const char* true_text = nullptr;
  const char* launch_default = nullptr;  ///< the default as printed by `accel launch --help`
  const char* question = nullptr;        ///< question of `accel config`
  const char* answer = nullptr;          ///< default answer; null: an answer is required
  char short_name = 0;                   ///< 'q': -q
  const char* unused_reason = nullptr;   ///< why nothing reads the value
  const char* harmless = nullptr;
  bool is_refused = false;                           ///< also in the file
  std::span<const char* const> refused_beside = {};  ///< flags with which this one has no effect

 private:
  template <typename T>
  static constexpr KeyKind kind_of() {
    if (std::is_same_v<T, bool>) return KeyKind::kFlag;
    if (std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>) return KeyKind::kInt;
    if (std::is_same_v<T, std::variant<bool, std::string>>) return KeyKind::kFlagOrText;
    return std::is_same_v<T, std::optional<std::vector<std::string>>> ? KeyKind::kTexts : KeyKind::kText;
  }
};

/// Returns the help text with the choices: "Version whose names the other keys have: 1, 2".
std::string help_of(const LaunchKey& key);
/// Returns a description of the accepted values: "true or false".
std::string expected_of(const LaunchKey& key);
bool fits(const LaunchKey& key, const ConfigValue& value);
/// Stores a text that was checked by `fits` in the member of the key.
void assign_text(LaunchConfig& config, const LaunchKey& key, const std::string& text);

/// Whether a value of an unused key asks for what happens anyway. `allows_fallback`: not for flags, where even the
/// default is a request.
bool is_harmless(const LaunchKey& key, const ConfigValue& value, bool allows_fallback);

/// Parses a value of kFlags: a list, or a text such as "(true, false, false)". nullopt if it has another form.
std::optional<std::array<bool, 3>> three_flags(const ConfigValue& value);

}  // namespace accel
