#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Runs a program on its own terminal and types into it.
///
/// Example: `TerminalSession session({bin("accel"), "config"}); session.wait_for("Which type of machine");
/// session.type(kArrowDown + "\n"); EXPECT_EQ(session.finish(), 0);`
///
/// Thread rule: one thread.
namespace accel::testing {

inline const std::string kArrowUp = "\x1b[A", kArrowDown = "\x1b[B", kControlC = "\x03";

class TerminalSession {
 public:
  explicit TerminalSession(const std::vector<std::string>& command, const CommandOptions& options = {});
  ~TerminalSession();
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  void type(const std::string& keys);
  /// Returns once `text` has appeared after the text of earlier calls. Throws std::runtime_error with everything
  /// shown so far if the time limit passes.
  void wait_for(const std::string& text);
  /// Returns true if the terminal echoes input and delivers it by lines, as a shell needs it.
  [[nodiscard]] bool is_in_shell_mode() const;
  /// Returns the exit code, or 128 + signal if the program was killed.
  int finish();
  [[nodiscard]] const std::string& shown() const { return shown_; }

 private:
  bool read_more();

  int master_ = -1, slave_ = -1;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point deadline_;
  std::string shown_;
  std::size_t waited_ = 0;
};

}  // namespace accel::testing
