#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

/// Runs a program as a user does, and keeps all that a user sees of it.
///
///     const auto run = run_command({bin("sim-run"), "--ranks", "2", experiment});
///     EXPECT_EQ(run.exit_code, 0) << run.error;
///
/// Thread rule: none; each call has its own process.
namespace accel::testing {

struct CommandOptions {
  std::map<std::string, std::string> environment = {};  ///< added to this process's; an empty value unsets
  std::chrono::seconds limit{60};                       ///< then the program and its children are killed
};

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal if it was killed
  bool was_killed_at_limit = false;
  std::string output;  ///< standard output
  std::string error;   ///< standard error
  double seconds = 0;
};

/// Standard input is empty. Throws std::runtime_error if the program cannot be started.
CommandResult run_command(const std::vector<std::string>& command, const CommandOptions& options = {});

/// A program of the build, and a file of the source tree, by name.
std::string bin(const std::string& program);
std::string source(const std::string& path);

/// A port of the loopback interface that somebody listens on while the value lives.
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

/// The last line of a text, without its end.
std::string last_line(std::string text);

}  // namespace accel::testing
