#pragma once

#include <rapidcheck.h>

#include <string>

#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"

/// Damages files as disks and networks do: a byte changes, or the end is lost.
namespace accel::testing {

inline std::string damaged(std::string bytes) {
  const auto place = pick<std::size_t>(0, bytes.size());
  if (pick(0, 2) == 1) return bytes.substr(0, place);
  bytes[place] = static_cast<char>(bytes[place] ^ pick(1, 256));
  return bytes;
}

/// Reads a file that may be damaged. It must be read, or rejected by a ConfigError that names it. Returns true if
/// it was read.
template <typename Read>
bool read_or_reject(const std::string& path, Read&& read) {
  try {
    read();
    return true;
  } catch (const ConfigError& error) {
    RC_ASSERT(std::string(error.what()).find(path) != std::string::npos);
    return false;
  }
}

}  // namespace accel::testing
