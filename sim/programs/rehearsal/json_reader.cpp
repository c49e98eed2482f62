// Strict conversion of JSON values to fields. nlohmann's own get<T>() converts silently (3.7 to 3, true to 1, -1 to the
// largest unsigned integer), so every value is checked for its type and range before it is read.
#include "sim/programs/rehearsal/json_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

// nlohmann stores non-negative literals as unsigned, so an unsigned value still fits if it is small enough.
bool is_signed(const Json& json) {
  return json.is_number_integer() &&
         (!json.is_number_unsigned() || json.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
}

bool is_unsigned(const Json& json) {
  return json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
}

// One branch per type of FieldTarget. Integers are accepted for a double, but not the other way round.
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
  if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
    return json.is_array() && std::all_of(json.begin(), json.end(), fits<typename T::value_type>);
  }
  return std::is_same_v<T, std::string> && json.is_string();
}

}  // namespace

std::vector<std::string> JsonReader::problems() {
  finish_keys();
  return problems_;
}

bool JsonReader::has(const std::string& key) const { return json_.contains(key); }

bool JsonReader::is_null(const std::string& key) const { return has(key) && json_.at(key).is_null(); }

// An unknown key is an error, not a warning: a misspelled key would otherwise leave its default in place silently.
void JsonReader::finish_keys() {
  for (const auto& [key, value] : json_.items()) {
    if (!known().contains(key)) problem(key, fmt::format("unknown key; known: {}", fmt::join(known(), ", ")));
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

// The value as JSON: quotes distinguish "4" from 4, which is often the problem.
std::string JsonReader::given(const std::string& key) const { return fmt::format(", got {}", json_.at(key).dump()); }

std::string JsonReader::type_name(const std::string& key, FieldTarget target) const {
  if (std::holds_alternative<std::string*>(target)) return "a string";
  if (std::holds_alternative<std::uint64_t*>(target)) return "an integer of 64 bits, 0 or more";
  // An integer that does not fit 32 bits gets the precise message; any other type gets the general one.
  if (std::holds_alternative<int*>(target) && is_signed(json_.at(key))) return "an integer of 32 bits";
  if (std::holds_alternative<int*>(target) || std::holds_alternative<std::int64_t*>(target))
    return "an integer of 64 bits";
  return FieldReader::type_name(key, target);
}

}  // namespace accel::programs
