#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

/// Runs a program as a user does, and keeps everything that a user sees of it.
///
/// Example: `const auto run = run_command({bin("sim-run"), "--ranks", "2", experiment}); EXPECT_EQ(run.exit_code,
/// 0) << run.error;`
///
/// Thread rule: none, because each call has its own process.
namespace accel::testing {

struct CommandOptions {
  std::map<std::string, std::string> environment = {};  ///< added to the inherited one; an empty value unsets
  std::chrono::seconds limit{60};                       ///< after it the program and its children are killed
};

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal if it was killed
  bool was_killed_at_limit = false;
  std::string output;  ///< standard output
  std::string error;   ///< standard error
  double seconds = 0;
};

/// Runs with empty standard input. Keeps the page of `--report DIR` among the artifacts (tests/support/artifacts.hpp).
/// Throws std::runtime_error if the program cannot be started.
CommandResult run_command(const std::vector<std::string>& command, const CommandOptions& options = {});

/// Returns the path of a program of the build (`bin`) or of a file in the source tree (`source`).
std::string bin(const std::string& program);
std::string source(const std::string& path);

/// A port of the loopback interface that is in use while the object lives.
class BusyPort {
 public:
  BusyPort();
  ~BusyPort();
  BusyPort(const BusyPort&) = delete;
  BusyPort& operator=(const BusyPort&) = delete;
  [[nodiscard]] int port() const { return port_; }

 private:
  int listener_ = -1;
  int port_ = 0;
};

/// Returns the last line of a text, without its newline.
std::string last_line(std::string text);

}  // namespace accel::testing
