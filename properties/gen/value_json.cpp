// JSON has neither tensors nor bytes nor non-string types of numbers, so tensors travel as hexadecimal bytes. This
// keeps every bit, NaN payloads included, and both sides can print a difference.
#include "properties/gen/value_json.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "reference/core/errors.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {{"float32", at::kFloat},
                                                              {"float64", at::kDouble},
                                                              {"bfloat16", at::kBFloat16},
                                                              {"complex64", at::kComplexFloat},
                                                              {"float16", at::kHalf},
                                                              {"bool", at::kBool},
                                                              {"uint8", at::kByte},
                                                              {"int8", at::kChar},
                                                              {"int16", at::kShort},
                                                              {"int32", at::kInt},
                                                              {"int64", at::kLong},
                                                              {"uint16", at::kUInt16},
                                                              {"uint32", at::kUInt32},
                                                              {"uint64", at::kUInt64},
                                                              {"complex128", at::kComplexDouble},
                                                              {"complex32", at::kComplexHalf},
                                                              {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                              {"float8_e5m2", at::kFloat8_e5m2},
                                                              {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
                                                              {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
                                                              {"float8_e8m0fnu", at::kFloat8_e8m0fnu}};

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const auto byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

// Strings that are not valid UTF-8, such as pickled bytes, become {"bytes": hex}.
Json json_of(const std::string& text) {
  try {
    (void)Json(text).dump();
    return text;
  } catch (const Json::exception&) {
    return {{"bytes", hex_of(text)}};
  }
}

}  // namespace

Json json_of(const at::Tensor& tensor) {
  const auto bytes = tensor.detach().cpu().contiguous();
  const auto* name = "";
  for (const auto& [candidate, dtype] : kDtypes) {
    if (dtype == bytes.scalar_type()) name = candidate;
  }
  const std::string_view content(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  return {{"dtype", name}, {"shape", bytes.sizes().vec()}, {"hex", hex_of(content)}};
}

// Bytes are written in hexadecimal, so that every bit of a number survives.
at::Tensor tensor_of(const Json& json) {
  for (const auto& [name, dtype] : kDtypes) {
    if (json["dtype"] != name) continue;
    auto tensor = at::empty(json["shape"].get<std::vector<std::int64_t>>(), dtype);
    const auto hex = json["hex"].get<std::string>();
    auto* data = static_cast<unsigned char*>(tensor.mutable_data_ptr());
    check_argument(hex.size() == 2 * tensor.nbytes(), "expected a tensor of {} bytes, got {} hexadecimal digits",
                   tensor.nbytes(), hex.size());
    for (std::size_t index = 0; index < tensor.nbytes(); ++index)
      data[index] = static_cast<unsigned char>(std::stoi(hex.substr(2 * index, 2), nullptr, 16));
    return tensor;
  }
  throw ArgumentError(fmt::format("unknown dtype {} of a tensor", json["dtype"].dump()));
}

// The order of the tests matters: Value converts bool to int, so bool comes first.
Json json_of(const Value& value) {
  if (value.is<bool>()) return value.as<bool>();
  if (value.is<std::int64_t>()) return value.as<std::int64_t>();
  if (value.is<double>()) return value.as<double>();
  if (value.is<std::string>()) return json_of(value.as<std::string>());
  if (value.is<at::Tensor>()) return json_of(value.as<at::Tensor>());
  if (value.is_null()) return nullptr;
  auto json = value.is<Value::List>() ? Json::array() : Json::object();
  if (value.is<Value::List>()) {
    for (const auto& element : value.as<Value::List>()) json.push_back(json_of(element));
  } else {
    for (const auto& [key, element] : value.as<Value::Dict>()) json[key] = json_of(element);
  }
  return json;
}

// An object with "hex" is a tensor; all other JSON values have a Value of the same form.
Value value_of(const Json& json) {
  if (json.is_object() && json.contains("hex")) return tensor_of(json);
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Value::List list;
    for (const auto& element : json) list.push_back(value_of(element));
    return list;
  }
  if (json.is_null()) return {};
  Value::Dict dict;
  for (const auto& [key, element] : json.items()) dict[key] = value_of(element);
  return dict;
}

}  // namespace accel::testing
