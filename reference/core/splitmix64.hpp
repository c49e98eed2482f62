#pragma once

#include <cstdint>

namespace accel {

/// Mixes a number so that neighbouring numbers give unrelated seeds. Thread rule: pure. Source: Vigna, splitmix64.
constexpr std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace accel
