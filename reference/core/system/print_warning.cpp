#include "reference/core/system/print_warning.hpp"

#include <iostream>

namespace accel {

void print_warning(const std::string& text) { std::cerr << "accel: warning: " + text + "\n" << std::flush; }

}  // namespace accel
