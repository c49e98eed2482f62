#include "reference/tracking/value_json.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/tracking/numbers.hpp"

namespace accel::tracking {
namespace {

Value content_of(const at::Tensor& tensor) {
  check_argument(tensor.defined() && !tensor.is_complex(), "a tracker cannot write {}",
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

}  // namespace

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

}  // namespace accel::tracking
