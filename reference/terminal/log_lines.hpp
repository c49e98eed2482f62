#pragma once

#include <memory>
#include <string>

namespace accel::terminal {

/// Note [Two versions of fmt]
/// LibTorch brings headers of fmt 12, Debian's spdlog wants those of fmt 9, and a unit that sees torch finds the
/// former. So spdlog stays in one unit without torch, behind this class.

/// A named log that writes lines above the bars of standard error: time - level - name - text.
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
