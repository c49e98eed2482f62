// Text formats of values. JSON and YAML are written here rather than by a library because Value has no conversion
// that keeps integers, floats and tensors apart, and because NaN and infinities need agreed spellings.
#include "reference/tracking/value_text.hpp"

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"

namespace accel::tracking {
namespace {

// Recursive over the dimensions; tensors that trackers receive are small.
Value content_of(const at::Tensor& tensor) {
  check_argument(tensor.defined() && !tensor.is_complex(), "trackers cannot write {}; expected real numbers",
                 tensor.defined() ? "complex numbers" : "an undefined tensor");
  if (tensor.dim() > 0) {
    Value::List parts;
    for (std::int64_t part = 0; part < tensor.size(0); ++part) parts.push_back(content_of(tensor[part]));
    return parts;
  }
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (!tensor.is_floating_point()) return tensor.item<std::int64_t>();
  return tensor.item<double>();
}

// JSON has no literals for these values, and Python's (NaN, Infinity) would be rejected by other parsers.
std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return number_text(value);
}

template <typename Items, typename Text>
std::string joined(char open, const Items& items, char close, const Text& text_of) {
  std::string text(1, open);
  for (const auto& item : items) text += (text.size() == 1 ? "" : ", ") + text_of(item);
  return text + close;
}

// A conservative test for strings that are safe without quotes in every YAML reader; others are quoted.
bool is_word(std::string_view text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '/';
  });
}

// Words that YAML 1.1 parses as bool or null, in any case.
bool is_reserved(const std::string& text) {
  constexpr std::array<std::string_view, 9> kReserved{"y", "n", "yes", "no", "true", "false", "on", "off", "null"};
  return std::find(kReserved.begin(), kReserved.end(), lower_case(text)) != kReserved.end();
}

// A JSON string is also a valid double-quoted YAML string.
std::string string_text(const std::string& text) {
  return is_word(text) && !is_reserved(text) ? text : json_text(std::string_view(text));
}

// PyYAML parses a number with an exponent but without a point as a string.
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

// A tensor of shape [1] is a list with one number, so only shape [] counts.
bool is_number(const Value& value) {
  if (!value.is<at::Tensor>()) return value.is<bool>() || value.is<std::int64_t>() || value.is<double>();
  const auto& tensor = value.as<at::Tensor>();
  return tensor.defined() && tensor.dim() == 0 && !tensor.is_complex();
}

std::optional<double> number_of(const Value& value) {
  if (!is_number(value)) return std::nullopt;
  if (value.is<bool>()) return value.as<bool>() ? 1 : 0;
  if (value.is<std::int64_t>()) return static_cast<double>(value.as<std::int64_t>());
  if (value.is<double>()) return value.as<double>();
  return value.as<at::Tensor>().item().toDouble();
}

// fmt prints the shortest text that reads back as the same number, but drops ".0", which would make it an
// integer.
std::string number_text(double value) {
  auto text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Value without_tensors(const Value& value) {
  return value.is<at::Tensor>() ? content_of(value.as<at::Tensor>().detach().cpu()) : value;
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const Value& value) {
  if (value.is_null()) return "null";
  if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
  if (value.is<std::int64_t>()) return std::to_string(value.as<std::int64_t>());
  if (value.is<double>()) return json_number(value.as<double>());
  if (value.is<std::string>()) return json_text(std::string_view(value.as<std::string>()));
  if (value.is<at::Tensor>()) return json_text(without_tensors(value));
  if (value.is<Value::List>())
    return joined('[', value.as<Value::List>(), ']', [](const Value& item) { return json_text(item); });
  return joined('{', value.as<Value::Dict>(), '}', [](const auto& entry) {
    return json_text(std::string_view(entry.first)) + ": " + json_text(entry.second);
  });
}

// An empty file would be read as null instead of an empty mapping.
std::string yaml_text(const Value::Dict& values) {
  std::string text;
  for (const auto& [name, value] : values) text += string_text(name) + ": " + value_text(value) + "\n";
  return text.empty() ? "{}\n" : text;
}

}  // namespace accel::tracking
