#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace accel::testing {

/// Appends the line to the file that the variable names; does nothing if it is not set. One write per line: processes
/// append to the same file at the same time.
inline void append_line(const char* variable, const std::string& line) {
  const char* const file = std::getenv(variable);
  if (file == nullptr) return;
  const int descriptor = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  const auto text = line + '\n';
  [[maybe_unused]] const auto written = write(descriptor, text.data(), text.size());
  close(descriptor);
}

}  // namespace accel::testing
