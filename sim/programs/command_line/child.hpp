#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/process.hpp"

namespace accel::programs {

/// The path of this program.
std::string own_path();

/// The words as a line for a POSIX shell. Plain words stay unquoted.
std::string shell_line(const std::vector<std::string>& words);

struct ChildEnd {
  int exit_code = 0;  ///< as a shell gives it: 128 + signal
  bool is_late = false;
};

/// Runs a process with its output streams in files. After `limit` it and its descendants are killed.
ChildEnd run_child(launcher::ProcessOptions options, const std::string& output, const std::string& error,
                   std::optional<std::chrono::seconds> limit = {});

}  // namespace accel::programs
