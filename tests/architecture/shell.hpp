#pragma once

#include <array>
#include <cstdio>
#include <string>

#include "tests/architecture/sources.hpp"

namespace accel::testing {

struct ShellResult {
  int status = -1;     ///< 0 if the command succeeded
  std::string output;  ///< standard output and standard error
};

/// Runs a shell command in the root of the sources.
inline ShellResult run_shell(const std::string& command) {
  ShellResult result;
  FILE* const pipe = popen(("cd '" + source_dir().string() + "' && { " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) return {.output = "cannot start a shell for: " + command};
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.output.append(buffer.data(), count);
  result.status = pclose(pipe);
  return result;
}

}  // namespace accel::testing
