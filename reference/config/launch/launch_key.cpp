#include "reference/config/launch/launch_key.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "reference/config/environment.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

using enum KeyKind;

template <typename T>
std::optional<T> number_in(const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// A number selects a choice, as in Accelerate's FSDP options, all of which have at least three choices.
bool is_choice(const LaunchKey& key, const std::string& text) {
  const auto number = key.kind == kChoice && key.choices.size() > 2 ? number_in<unsigned>(text) : std::nullopt;
  if (number) return *number >= 1 && *number <= key.choices.size();
  return std::any_of(key.choices.begin(), key.choices.end(), [&](const char* choice) {
    return key.kind == kText ? choice == text : lower_case(choice) == lower_case(text);
  });
}

}  // namespace

std::string help_of(const LaunchKey& key) {
  return key.choices.size() == 0 ? key.help : fmt::format("{}: {}", key.help, fmt::join(key.choices, ", "));
}

std::string expected_of(const LaunchKey& key) {
  if (key.choices.size() > 0) return fmt::format("{}", fmt::join(key.choices, ", "));
  switch (key.kind) {
    case kFlag: return "true or false";
    case kInt:
    case kInteger: return "an integer";
    case kNumber: return "a number";
    case kNumberOrAuto: return "a number or auto";
    case kSeconds: return "a number above 0";
    case kFlags: return "three flags, such as [true, false, false]";
    case kTexts: return "a list of strings";
    default: return "a string";
  }
}

// Works on the text of a value, so that `2`, "2" and the flag --fsdp_version 2 are treated alike.
bool fits(const LaunchKey& key, const ConfigValue& value) {
  const auto text = python_text(value);
  if (key.kind == kFlags) return three_flags(value).has_value();
  if (std::holds_alternative<std::vector<bool>>(value)) return false;
  if (key.choices.size() > 0) return is_choice(key, text);
  switch (key.kind) {
    case kFlag: return flag_of(text).has_value();
    case kInt: return number_in<int>(text).has_value();
    case kInteger: return number_in<std::int64_t>(text).has_value();
    case kNumber: return number_in<double>(text).has_value();
    case kNumberOrAuto: return text == "auto" || number_in<double>(text);
    case kSeconds: return number_in<double>(text).value_or(0) > 0;
    default: return true;
  }
}

// One overload per alternative of LaunchField. Lists and sections cannot be set by a single text.
void assign_text(LaunchConfig& config, const LaunchKey& key, const std::string& text) {
  struct Assigner {
    LaunchConfig& config;
    const std::string& text;

    void operator()(bool LaunchConfig::*member) const { config.*member = flag_of(text).value_or(false); }
    void operator()(int LaunchConfig::*member) const { config.*member = number_in<int>(text).value_or(0); }
    void operator()(std::optional<int> LaunchConfig::*member) const { config.*member = number_in<int>(text); }
    void operator()(std::string LaunchConfig::*member) const { config.*member = text; }
    void operator()(std::optional<std::string> LaunchConfig::*member) const { config.*member = text; }
    void operator()(std::variant<bool, std::string> LaunchConfig::*member) const { config.*member = text; }
    void operator()(std::monostate) const {}
    void operator()(std::optional<std::vector<std::string>> LaunchConfig::*) const {}
    void operator()(ConfigSection LaunchConfig::*) const {}
  };
  std::visit(Assigner{config, text}, key.field);
}

bool is_harmless(const LaunchKey& key, const ConfigValue& value, bool allows_fallback) {
  if (key.kind == KeyKind::kFlags) return three_flags(value) == std::array<bool, 3>{};
  const auto text = lower_case(python_text(value));
  const auto is = [&](const char* accepted) {
    if (accepted == nullptr) return false;
    return key.kind == KeyKind::kFlag && flag_of(text) ? flag_of(text) == flag_of(accepted)
                                                       : text == lower_case(accepted);
  };
  if (is(key.harmless) || key.choices.size() == 1) return true;
  return (allows_fallback || key.harmless == nullptr) && is(key.fallback);
}

// Accepts a list, or a text with three words separated by commas, with any brackets and spaces.
std::optional<std::array<bool, 3>> three_flags(const ConfigValue& value) {
  std::vector<bool> flags;
  if (const auto* list = std::get_if<std::vector<bool>>(&value)) flags = *list;
  std::string word;
  bool all_are_flags = true;
  for (const char letter : flags.empty() ? python_text(value) + "," : std::string()) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) word += letter;
    if (letter != ',') continue;
    const auto flag = flag_of(std::exchange(word, ""));
    all_are_flags = all_are_flags && flag.has_value();
    flags.push_back(flag.value_or(false));
  }
  if (!all_are_flags || flags.size() != 3) return std::nullopt;
  return std::array{bool(flags[0]), bool(flags[1]), bool(flags[2])};
}

}  // namespace accel
