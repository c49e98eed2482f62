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
/// The kernel kills the child when the calling thread ends. Thread rule: any thread that lives as long as the child
/// should. The process may have threads, since the forked child only calls exec.
namespace accel::launcher {

struct ProcessOptions {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};          ///< overrides this process's environment
  std::map<std::string, std::string> default_environment = {};  ///< for variables that neither of the two sets
  std::vector<std::pair<int, int>> descriptors = {};            ///< {of this process, of the child}
  std::string working_folder = {};                              ///< "": that of this process
  bool own_group = false;             ///< create a process group, so that its descendants get signals too
  std::vector<int> cpus = {};         ///< CPUs to which it is pinned; empty: those of this process
  const sigset_t* blocked = nullptr;  ///< initially blocked signals; null: those of this process
};

/// Throws ConfigError if the program cannot be run.
pid_t start_process(const ProcessOptions& options);

/// Converts a status of wait() as a shell does: to the exit code, or 128 + signal.
int exit_code_of_status(int status);

/// Describes an exit code, for example "ended with exit code 3" or "was killed by signal 9 (Killed)".
std::string describe_exit_code(int exit_code);

}  // namespace accel::launcher
