#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// A program on a terminal of its own, with somebody who types.
///
///     TerminalSession session({bin("accel"), "config"});
///     session.wait_for("Which type of machine");
///     session.type(kArrowDown + "\n");
///     EXPECT_EQ(session.finish(), 0);
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
  /// Returns when `text` is shown, after what earlier calls waited for. Throws std::runtime_error with all that was
  /// shown if it does not come before the limit.
  void wait_for(const std::string& text);
  /// Whether the terminal shows what is typed, and hands it on by lines, as a shell needs it.
  [[nodiscard]] bool is_as_shells_need_it() const;
  /// The exit code; 128 + signal if it was killed.
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
