#include "sim/programs/runtime/json_reader.hpp"

#include <fmt/ranges.h>

#include <limits>

namespace accel::programs {

std::vector<std::string> JsonReader::problems() const {
  auto problems = problems_;
  for (const auto& [key, value] : json_.items()) {
    if (!known_.contains(key))
      problems.push_back(fmt::format("{}: unknown key; known are {}", key, fmt::join(known_, ", ")));
  }
  return problems;
}

void JsonReader::convert(const std::string& key, const Json& json, bool& value) {
  if (!json.is_boolean()) return expected(key, "true or false", json);
  value = json.get<bool>();
}

void JsonReader::convert(const std::string& key, const Json& json, std::int64_t& value) {
  const bool fits = json.is_number_integer() && (!json.is_number_unsigned() ||
                                                 json.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  if (!fits) return expected(key, "an integer of 64 bits", json);
  value = json.get<std::int64_t>();
}

void JsonReader::convert(const std::string& key, const Json& json, std::uint64_t& value) {
  const bool fits = json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
  if (!fits) return expected(key, "an integer of 64 bits, 0 or more", json);
  value = json.get<std::uint64_t>();
}

void JsonReader::convert(const std::string& key, const Json& json, int& value) {
  std::int64_t wide = 0;
  const auto num_problems = problems_.size();
  convert(key, json, wide);
  if (problems_.size() > num_problems) return;
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max())
    return expected(key, "an integer of 32 bits", json);
  value = static_cast<int>(wide);
}

void JsonReader::convert(const std::string& key, const Json& json, std::string& value) {
  if (!json.is_string()) return expected(key, "a string", json);
  value = json.get<std::string>();
}

void JsonReader::expected(const std::string& key, const std::string& what, const Json& json) {
  problems_.push_back(fmt::format("{}: expected {}, got {}", key, what, json.dump()));
}

}  // namespace accel::programs
