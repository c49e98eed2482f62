#pragma once

#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing {

/// The command that runs bench_against. Debian's Python, because SciPy is Debian's package, which other installations
/// do not see.
inline std::vector<std::string> bench_against() {
  return {"/usr/bin/python3", "-B", source("bench/against/bench_against.py")};
}

}  // namespace accel::testing
