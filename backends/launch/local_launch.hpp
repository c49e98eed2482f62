#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/launch/job.hpp"
#include "backends/launch/ports.hpp"

/// N processes of one program on this machine, each with the variables of its rank: a job of one machine and one
/// attempt.
///
///     launch_local({.command = {"./train", "--epochs", "3"}, .num_processes = 4});
///
/// Output is forwarded line by line with its rank in front; on the first failure all others are ended, and what failed
/// is told last. Thread rule: as run_job's.
namespace accel::launcher {

struct LocalLaunchOptions {
  std::vector<std::string> command;
  int num_processes = 1;
  int master_port = 0;                                  ///< 0: a free one
  std::map<std::string, std::string> environment = {};  ///< added for every process
  bool prefix_output = true;
  int progress_fd = -1;  ///< handed to rank 0 as descriptor 3, e.g. for a progress bar; -1: none
};

struct LocalLaunchResult {
  int exit_code = 0;  ///< of the first process that failed, 128 + signal if it was killed; 0: all ended well
  int failed_rank = -1;
  std::string message;      ///< what failed and its last line on standard error; empty if all ended well
  long peak_rss_bytes = 0;  ///< summed over the processes
};

/// Returns when all processes have ended. Throws ConfigError if the port is in use or the program cannot be run.
LocalLaunchResult launch_local(const LocalLaunchOptions& options);

}  // namespace accel::launcher
