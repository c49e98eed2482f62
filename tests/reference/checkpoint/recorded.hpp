#pragma once

#include <cstdlib>
#include <string>

namespace accel::testing {

/// Returns the path of a file that Python's packages wrote.
inline std::string recorded(const std::string& name) {
  return std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/tests/reference/checkpoint/recorded/" + name;
}

}  // namespace accel::testing
