#pragma once

#include <cstdint>

namespace accel::recorder {

/// A hash of a list, by one number more.
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e37'79b9'7f4a'7c15ull;
  return hash ^ hash >> 32;
}

}  // namespace accel::recorder
