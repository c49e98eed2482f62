#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "reference/tree/tree.hpp"

/// A dynamically typed value, as used in state dicts and for objects of arbitrary content.
///
///     accel::Value state(accel::Value::Dict{{"epoch", 3}, {"order", accel::Value::Dict{{"generator", tensor}}}});
///     auto epoch = state.at("epoch").as<std::int64_t>();
///     auto copy = accel::unpack<accel::Value>(accel::pack(state));
///
/// A value is null, a bool, int64, double, string, tensor, or a list or dict of values. Two values are equal if their
/// types and contents are equal; tensors are equal if dtype, shape and bytes are. Thread rule: a value.
namespace accel {

class Value {
 public:
  using List = std::vector<Value>;
  using Dict = std::map<std::string, Value>;

  Value() = default;
  Value(bool value) : content_(value) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Value(T value) : content_(static_cast<std::int64_t>(value)) {}
  Value(double value) : content_(value) {}
  Value(std::string value) : content_(std::move(value)) {}
  Value(std::string_view value) : content_(std::string(value)) {}
  Value(const char* value) : content_(std::string(value)) {}
  Value(at::Tensor value) : content_(std::move(value)) {}
  Value(List value) : content_(std::move(value)) {}
  Value(Dict value) : content_(std::move(value)) {}

  [[nodiscard]] bool is_null() const { return is<std::monostate>(); }
  /// T: bool, std::int64_t, double, std::string, at::Tensor, List or Dict.
  template <typename T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(content_);
  }
  /// Throws ArgumentError if the value has another type.
  template <typename T>
  [[nodiscard]] const T& as() const {
    if (const auto* content = std::get_if<T>(&content_)) return *content;
    throw_type(Value(T()).type_name());
  }
  /// Returns an entry of a dict. Throws ArgumentError if this value is not a dict or lacks the key.
  [[nodiscard]] const Value& at(const std::string& key) const;
  [[nodiscard]] bool contains(const std::string& key) const;
  /// "null", "bool", "int", "float", "string", "tensor", "list" or "dict".
  [[nodiscard]] std::string type_name() const;

  friend bool operator==(const Value& a, const Value& b);

 private:
  friend struct tree_conversion<Value>;
  [[noreturn]] void throw_type(const std::string& expected) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, at::Tensor, List, Dict> content_;
};

/// Serializes a Value as bytes.
template <>
struct tree_conversion<Value> {
  static std::string to_tree(const Value& value);
  /// Throws ArgumentError if the bytes are not those of a Value.
  static Value from_tree(const std::string& bytes);
};

}  // namespace accel
