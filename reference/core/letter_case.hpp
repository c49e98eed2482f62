#pragma once

#include <algorithm>
#include <string>

/// Conversion of ASCII letters to one case, independent of the locale. Other bytes are unchanged. Thread rule: pure
/// functions.
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
