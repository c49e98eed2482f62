#pragma once

#include <memory>
#include <string>

namespace accel::terminal {

/// Note [Two versions of fmt]
/// LibTorch contains headers of fmt 12, while Debian's spdlog requires those of fmt 9. A translation unit that includes
/// torch headers finds the former. Therefore spdlog is used in only one unit, without torch, hidden by this class.

/// A named log that writes lines above the progress bars on standard error: time - level - name - text.
/// Thread rule: any thread.
class LogLines {
 public:
  /// Levels: 0 debug, 1 info, 2 warning, 3 error, 4 critical.
  LogLines(const std::string& name, int level);
  ~LogLines();
  [[nodiscard]] bool should_log(int level) const;
  void write(int level, const std::string& text);

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace accel::terminal
