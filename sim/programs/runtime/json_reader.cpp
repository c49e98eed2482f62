#include "sim/programs/runtime/json_reader.hpp"

#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

bool is_signed(const Json& json) {
  return json.is_number_integer() &&
         (!json.is_number_unsigned() || json.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
}

bool is_unsigned(const Json& json) {
  return json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
}

template <typename T>
bool fits(const Json& json) {
  if constexpr (std::is_same_v<T, bool>) return json.is_boolean();
  if constexpr (std::is_same_v<T, std::int64_t>) return is_signed(json);
  if constexpr (std::is_same_v<T, std::uint64_t>) return is_unsigned(json);
  if constexpr (std::is_same_v<T, int>) {
    return is_signed(json) && json.get<std::int64_t>() >= std::numeric_limits<int>::min() &&
           json.get<std::int64_t>() <= std::numeric_limits<int>::max();
  }
  if constexpr (std::is_same_v<T, double>) return json.is_number();
  return std::is_same_v<T, std::string> && json.is_string();
}

}  // namespace

std::vector<std::string> JsonReader::problems() {
  finish_keys();
  return problems_;
}

bool JsonReader::has(const std::string& key) const { return json_.contains(key); }

bool JsonReader::is_null(const std::string& key) const { return has(key) && json_.at(key).is_null(); }

void JsonReader::finish_keys() {
  for (const auto& [key, value] : json_.items()) {
    if (!known().contains(key)) problem(key, fmt::format("unknown key; known are {}", fmt::join(known(), ", ")));
  }
}

bool JsonReader::convert(const std::string& key, FieldTarget target) const {
  const auto& json = json_.at(key);
  return std::visit(
      [&]<typename T>(T* value) {
        const bool is_right = fits<T>(json);
        if (is_right) *value = json.get<T>();
        return is_right;
      },
      target);
}

std::string JsonReader::given(const std::string& key) const { return fmt::format(", got {}", json_.at(key).dump()); }

std::string JsonReader::type_name(const std::string& key, FieldTarget target) const {
  if (std::holds_alternative<std::string*>(target)) return "a string";
  if (std::holds_alternative<std::uint64_t*>(target)) return "an integer of 64 bits, 0 or more";
  if (std::holds_alternative<int*>(target) && is_signed(json_.at(key))) return "an integer of 32 bits";
  if (std::holds_alternative<int*>(target) || std::holds_alternative<std::int64_t*>(target))
    return "an integer of 64 bits";
  return FieldReader::type_name(key, target);
}

}  // namespace accel::programs
