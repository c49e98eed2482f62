// All values of a plugin are kept as text, because they come from three sources (the program, the environment, a
// DeepSpeed file) and the same rule and message apply to each. Locale-independent parsing with std::from_chars.
#include "reference/config/plugin_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <regex>
#include <sstream>
#include <type_traits>

#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

template <typename T>
bool parse(const std::string& text, T& value) {
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

bool parse(const std::string& text, bool& value) {
  const auto flag = flag_of(text);
  value = flag.value_or(false);
  return flag.has_value();
}

}  // namespace

std::optional<GivenValue> PluginReader::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::string PluginReader::text(const std::string& key) const { return find(key).value_or(GivenValue{}).text; }

// Names the source that the value came from: the field of the plugin, or the environment variable.
void PluginReader::problem(const std::string& key, const std::string& text) {
  const auto found = find(key);
  problems_.push_back(fmt::format("{}: {}", found ? found->name : name_ + ": " + key, text));
}

// Lists are not converted: no variable of a plugin holds one, except names that the plugin splits itself.
bool PluginReader::convert(const std::string& key, FieldTarget target) const {
  const auto& text = values_.at(key).text;
  return std::visit(
      [&]<typename T>(T* value) {
        if constexpr (std::is_arithmetic_v<T>) return parse(text, *value);
        if constexpr (std::is_same_v<T, std::string>) *value = text;
        return std::is_same_v<T, std::string>;
      },
      target);
}

std::string PluginReader::given(const std::string& key) const {
  return fmt::format(", got '{}'", values_.at(key).text);
}

// Accelerate accepts names in any case and, for some options, the number of the name from 1.
std::optional<std::string> PluginReader::chosen(const FieldRule& rule, const std::string& text) const {
  std::size_t number = 0;
  if (rule.numbered && parse(text, number) && number >= 1 && number <= rule.choices.size())
    return rule.choices[number - 1];
  const auto choice = std::find_if(rule.choices.begin(), rule.choices.end(),
                                   [&](const char* candidate) { return lower_case(text) == lower_case(candidate); });
  return choice == rule.choices.end() ? std::nullopt : std::optional<std::string>(*choice);
}

std::string PluginReader::choices_of(const FieldRule& rule) const {
  const auto names = fmt::format("{}", fmt::join(rule.choices, ", "));
  return rule.numbered ? fmt::format("{} or 1 to {}", names, rule.choices.size()) : names;
}

void PluginReader::check_expressions(const char* field, const std::vector<std::string>& expressions) {
  for (const auto& expression : expressions) {
    try {
      std::regex{expression};
    } catch (const std::regex_error& error) {
      note("{}: {}: '{}' is not a regular expression: {}", name_, field, expression, error.what());
    }
  }
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const auto first = part.find_first_not_of(' ');
    if (first != std::string::npos) parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return parts;
}

}  // namespace accel
