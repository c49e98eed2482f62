#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

/// Starts a program as a child of this process.
///
///     const pid_t pid = start_process({.command = {"./train", "--epochs", "3"}, .environment = {{"RANK", "0"}}});
///
/// The kernel kills the child when this process dies. Thread rule: from any thread that lives as long as the child
/// should; the process may have threads, since nothing but exec runs in the fork.
namespace accel::launcher {

struct ProcessOptions {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};          ///< beats this process's
  std::map<std::string, std::string> default_environment = {};  ///< for what neither of the two has
  std::vector<std::pair<int, int>> descriptors = {};            ///< {of this process, of the child}
  bool own_group = false;             ///< a process group of its own, so that what it starts can be signalled with it
  std::vector<int> cpus = {};         ///< it runs on these alone; empty: on this process's
  const sigset_t* blocked = nullptr;  ///< the signals that it begins with blocked; null: this process's
};

/// Throws ConfigError if the program cannot be run.
pid_t start_process(const ProcessOptions& options);

/// What wait() tells, as a shell does: the exit code, or 128 + signal.
int exit_code_of_status(int status);

/// E.g. "ended with exit code 3", "was killed by signal 9 (Killed)".
std::string describe_exit_code(int exit_code);

}  // namespace accel::launcher
