#pragma once

#include <string>
#include <utility>

namespace accel::terminal {

/// A named log that writes lines above the progress bars on standard error, in the format of Python's logging:
/// 2026-01-31 12:00:00,123 - level - name - text. Thread rule: any thread.
class LogLines {
 public:
  /// Levels: 0 debug, 1 info, 2 warning, 3 error, 4 critical. Lower ones are not written.
  LogLines(std::string name, int level) : name_(std::move(name)), level_(level) {}
  [[nodiscard]] bool should_log(int level) const { return level >= level_; }
  void write(int level, const std::string& text) const;

 private:
  std::string name_;
  int level_;
};

}  // namespace accel::terminal
