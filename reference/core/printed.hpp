#pragma once

#include <ATen/core/Formatting.h>
#include <fmt/format.h>

#include <sstream>
#include <string>

namespace accel::detail {

/// As fmt prints it, or as an output stream does: tensors and their sizes.
template <typename T>
std::string printed(const T& value) {
  if constexpr (fmt::is_formattable<T>::value) {
    return fmt::format("{}", value);
  } else {
    std::ostringstream text;
    text << value;
    return std::move(text).str();
  }
}

}  // namespace accel::detail
