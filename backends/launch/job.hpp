#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backends/launch/machines.hpp"
#include "backends/launch/rank_processes.hpp"

/// This machine's part of a job: its processes, with the variables of their ranks, from the first attempt to the last.
///
///     run_job({.command = {"./train"}, .machines = {.num_machines = 2, .machine_rank = 1, .num_processes = 8,
///                                                   .main_address = "10.0.0.1", .max_restarts = 3}});
///
/// The first failure of any rank ends the attempt on every machine; with restarts left, all ranks begin anew, on
/// another port. Signals that ask for the end reach every process; when all have ended, they end this process too, as a
/// shell expects. Thread rule: one job at a time; the calling process may have threads, since nothing but exec runs in
/// the fork.
namespace accel::launcher {

inline constexpr int kMaxProcesses = 4096;

struct JobOptions {
  std::vector<std::string> command;
  MachinesOptions machines = {};
  std::map<std::string, std::string> environment = {};          ///< added for every process
  std::map<std::string, std::string> default_environment = {};  ///< for what is not set otherwise
  bool has_rank_variables = true;  ///< false: one process, to which no launcher's variables are told
  std::chrono::milliseconds monitor_interval{100};
  std::string prefix = "rank";  ///< "[rank 3] " in front of every line of rank 3; empty: nothing
  bool forwards_output = true;  ///< false: the processes write to this one's standard output and error themselves
  std::string log_dir = {};     ///< DIR/attempt_0/rank_3/stdout.log, stderr.log; empty: none
  std::vector<int> logged =
      {};                  ///< of each process here: 1 standard output, 2 standard error, 3 both; empty: both of all
  bool pins_cpus = false;  ///< every process runs on CPUs of its own: plan_cpus
  bool tells_restarts = true;  ///< a line on standard error when an attempt has failed and another begins
  int progress_fd = -1;        ///< handed to the first process as descriptor 3, e.g. for a progress bar; -1: none
};

struct JobResult {
  RankFailure failure;  ///< of the last attempt; exit code 0: all ended well
  int restarts = 0;
  long peak_rss_bytes = 0;  ///< summed over the processes here
};

/// Returns when all processes of this machine have ended, and the job is over on the others. Throws ConfigError, before
/// anything runs, for numbers that do not fit, a port in use or a program that cannot be run.
JobResult run_job(const JobOptions& options);

/// What makes a process a rank.
std::map<std::string, std::string> rank_variables(const MachinesOptions& machines, const Attempt& attempt,
                                                  int local_rank);

/// How many processes run on each machine. Throws ConfigError if they do not divide, or a number is impossible.
int processes_per_machine(const MachinesOptions& machines);

}  // namespace accel::launcher
