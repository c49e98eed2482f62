#pragma once

#include <algorithm>
#include <string>

/// ASCII letters in one case, whatever the locale; other bytes stay. Thread rule: pure functions.
namespace accel {

inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char byte) { return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte; });
  return text;
}

inline std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char byte) { return byte >= 'a' && byte <= 'z' ? static_cast<char>(byte - 32) : byte; });
  return text;
}

}  // namespace accel
