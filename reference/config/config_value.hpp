#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace accel {

/// A value in a section of a configuration file: what Python reads there, so that it can be written as it was.
using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<bool>>;

/// Values by key.
using ConfigSection = std::map<std::string, ConfigValue>;

/// As Python's str() writes it: "True", "2", "1.0", text as it is.
std::string python_text(const ConfigValue& value);

}  // namespace accel
