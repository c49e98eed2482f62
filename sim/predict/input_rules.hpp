#pragma once

#include <cmath>
#include <string>

namespace accel::predict {

inline bool is_positive(double value) { return value > 0 && std::isfinite(value); }
inline bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace accel::predict
