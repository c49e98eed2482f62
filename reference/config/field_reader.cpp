// The source-independent half of reading options: conversion, rule and message. A subclass per source (YAML,
// plugin and environment, JSON) provides the text and its location.
#include "reference/config/field_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

namespace accel {

// The text of the rule goes first, then its choices, then the name of the type, in decreasing precision.
bool FieldReader::read_value(const std::string& key, FieldTarget target, const FieldRule& rule) {
  std::string expected = rule.expected != nullptr ? rule.expected : "";
  if (rule.expected == nullptr && !rule.choices.empty()) expected = choices_of(rule);
  return read_value(
      key, target, [&] { return meets(target, rule); }, expected);
}

// The key counts as known even if it is absent or wrong, so that finish_keys reports only keys that nobody reads.
bool FieldReader::read_value(const std::string& key, FieldTarget target, const std::function<bool()>& accepts,
                             const std::string& expected) {
  know(key);
  if (!has(key)) return false;
  if (convert(key, target) && accepts()) return true;
  problem(key, fmt::format("expected {}{}", expected.empty() ? type_name(key, target) : expected, given(key)));
  return false;
}

// A choice is replaced by its canonical spelling: plugins accept other cases and numbers.
bool FieldReader::meets(FieldTarget target, const FieldRule& rule) const {
  return std::visit(
      [&]<typename T>(T* value) {
        if constexpr (std::is_same_v<T, std::string>) {
          if (rule.choices.empty()) return true;
          const auto choice = chosen(rule, *value);
          if (choice) *value = *choice;
          return choice.has_value();
        }
        if constexpr (std::is_arithmetic_v<T>) return rule(static_cast<double>(*value));
        return true;
      },
      target);
}

std::optional<std::string> FieldReader::chosen(const FieldRule& rule, const std::string& text) const {
  const auto choice = std::find(rule.choices.begin(), rule.choices.end(), text);
  return choice == rule.choices.end() ? std::nullopt : std::optional<std::string>(*choice);
}

std::string FieldReader::choices_of(const FieldRule& rule) const { return any_of(rule.choices); }

std::string FieldReader::type_name(const std::string& /*key*/, FieldTarget target) const {
  return std::visit(
      []<typename T>(T*) -> std::string {
        if constexpr (std::is_same_v<T, bool>) return "true or false";
        if constexpr (std::is_same_v<T, double>) return "a number";
        if constexpr (std::is_same_v<T, std::string>) return "a string";
        if constexpr (std::is_integral_v<T>) return "an integer";
        if constexpr (std::is_same_v<T, std::vector<int>>) return "a list of integers";
        return "a list of strings";
      },
      target);
}

std::string any_of(std::span<const char* const> words, const char* quote) {
  std::string text;
  for (std::size_t index = 0; index < words.size(); ++index) {
    if (index > 0) text += index + 1 == words.size() ? " or " : ", ";
    text += fmt::format("{}{}{}", quote, words[index], quote);
  }
  return text;
}

}  // namespace accel
