#pragma once

#include <nlohmann/json.hpp>

#include "reference/tree/value.hpp"

/// Converts values to JSON and back, for comparisons with Python. A tensor is `{"dtype": "float32", "shape": [2],
/// "hex": "0000803f..."}`.
///
/// Example: `Value state = value_of(Json::parse(line));`
///
/// Thread rule: pure functions.
namespace accel::testing {

nlohmann::json json_of(const Value& value);
nlohmann::json json_of(const at::Tensor& tensor);
Value value_of(const nlohmann::json& json);
at::Tensor tensor_of(const nlohmann::json& json);

}  // namespace accel::testing
