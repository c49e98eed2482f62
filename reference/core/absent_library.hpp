#pragma once

#include <string_view>

#include "reference/core/errors.hpp"

namespace accel {

/// Throws ConfigError: this build was configured without the library that `action` needs. Compiled sources that end in
/// _absent.cpp call it; each takes the place of one that uses the library.
[[noreturn]] inline void throw_absent(std::string_view action, std::string_view library, std::string_view option) {
  throw ConfigError(
      fmt::format("{}: this build of accel lacks {}; configure it with -D{}=ON", action, library, option));
}

}  // namespace accel
