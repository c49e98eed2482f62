#pragma once

#include <string>

namespace accel {

/// Prints "accel: warning: {text}" to standard error.
void print_warning(const std::string& text);

}  // namespace accel
