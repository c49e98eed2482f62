#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/launch/job.hpp"
#include "backends/launch/ports.hpp"

/// Runs N processes of one program on this machine, each with the variables of its rank: a job of one machine and one
/// attempt.
///
///     launch_local({.command = {"./train", "--epochs", "3"}, .num_processes = 4});
///
/// Output is forwarded line by line, prefixed with the rank. The first failure ends all other processes. Thread rule:
/// as for run_job.
namespace accel::launcher {

struct LocalLaunchOptions {
  std::vector<std::string> command;
  int num_processes = 1;
  int master_port = 0;                                  ///< 0: choose a free port
  std::map<std::string, std::string> environment = {};  ///< set for every process
  bool prefix_output = true;
  int progress_fd = -1;  ///< passed to rank 0 as descriptor 3, e.g. for a progress bar; -1: none
};

struct LocalLaunchResult {
  int exit_code = 0;  ///< of the first process that failed, 128 + signal if it was killed; 0: all succeeded
  int failed_rank = -1;
  std::string message;      ///< the failure and the rank's last line on standard error; empty if all succeeded
  long peak_rss_bytes = 0;  ///< summed over the processes
};

/// Returns when all processes have ended. Throws ConfigError if the port is in use or the program cannot be run.
LocalLaunchResult launch_local(const LocalLaunchOptions& options);

}  // namespace accel::launcher
