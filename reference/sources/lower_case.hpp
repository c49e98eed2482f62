#pragma once

#include <algorithm>
#include <string>

namespace accel::detail {

/// ASCII letters in lower case, whatever the locale; other bytes as they are.
inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char byte) { return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte; });
  return text;
}

}  // namespace accel::detail
