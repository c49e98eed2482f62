#include "reference/tracking/hparams_yaml.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

#include "reference/core/letter_case.hpp"
#include "reference/tracking/numbers.hpp"
#include "reference/tracking/value_json.hpp"

namespace accel::tracking {
namespace {

bool is_word(std::string_view text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '/';
  });
}

// Words that YAML 1.1 reads as bool or null, in any case.
bool is_reserved(const std::string& text) {
  constexpr std::array<std::string_view, 9> kReserved{"y", "n", "yes", "no", "true", "false", "on", "off", "null"};
  return std::find(kReserved.begin(), kReserved.end(), lower_case(text)) != kReserved.end();
}

// A JSON string is a YAML string in double quotes.
std::string string_text(const std::string& text) {
  return is_word(text) && !is_reserved(text) ? text : json_text(std::string_view(text));
}

// An exponent without a point is a string for PyYAML.
std::string float_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  auto text = number_text(value);
  if (const auto exponent = text.find('e'); exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

std::string value_text(const Value& value) {
  if (value.is<std::string>()) return string_text(value.as<std::string>());
  if (value.is<double>()) return float_text(value.as<double>());
  if (value.is<at::Tensor>()) return value_text(without_tensors(value));
  std::string text;
  if (value.is<Value::List>()) {
    for (const auto& item : value.as<Value::List>()) text += (text.empty() ? "" : ", ") + value_text(item);
    return "[" + text + "]";
  }
  if (value.is<Value::Dict>()) {
    for (const auto& [name, item] : value.as<Value::Dict>())
      text += (text.empty() ? "" : ", ") + string_text(name) + ": " + value_text(item);
    return "{" + text + "}";
  }
  return json_text(value);
}

}  // namespace

std::string yaml_text(const Value::Dict& values) {
  std::string text;
  for (const auto& [name, value] : values) text += string_text(name) + ": " + value_text(value) + "\n";
  return text.empty() ? "{}\n" : text;
}

}  // namespace accel::tracking
