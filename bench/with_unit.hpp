#pragma once

#include <string>

namespace accel::bench {

/// Formats a value in `unit`, which is "s" or "bytes", with a fitting unit, for example "1.25 ms" or "3.1 MB".
std::string with_unit(double value, const std::string& unit);

}  // namespace accel::bench
