#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backends/launch/machines.hpp"
#include "backends/launch/rank_processes.hpp"
#include "reference/recorder/call_log.hpp"
#include "reference/recorder/job_watch.hpp"

/// Runs this machine's part of a job: starts its processes with the variables of their ranks, and restarts them.
///
///     run_job({.command = {"./train"}, .machines = {.num_machines = 2, .machine_rank = 1, .num_processes = 8,
///                                                   .main_address = "10.0.0.1", .max_restarts = 3}});
///
/// The first failure of any rank ends the attempt on every machine. With restarts left, all ranks restart with another
/// store port. Signals that request the end are sent to every process; when all have ended, the signal ends this
/// process too, as a shell expects. Thread rule: one job at a time. The calling process may have threads, since the
/// forked child only calls exec.
namespace accel::launcher {

inline constexpr int kMaxProcesses = 4096;

struct JobOptions {
  std::vector<std::string> command;
  MachinesOptions machines = {};
  std::map<std::string, std::string> environment = {};          ///< set for every process
  std::map<std::string, std::string> default_environment = {};  ///< set where the environment lacks the variable
  bool has_rank_variables = true;                               ///< false: one process without a launcher's variables
  std::chrono::milliseconds monitor_interval{100};
  std::string prefix = "rank";  ///< "[rank 3] " in front of every line of rank 3; empty: nothing
  bool forwards_output = true;  ///< false: the processes inherit this process's standard output and error
  std::string log_dir = {};     ///< DIR/attempt_0/rank_3/stdout.log, stderr.log; empty: none
  std::vector<int> logged =
      {};                       ///< per local process: 1 standard output, 2 standard error, 3 both; empty: both for all
  bool pins_cpus = false;       ///< pin every process to separate CPUs: see plan_cpus
  bool prints_restarts = true;  ///< print a line on standard error before each restart
  bool logs_calls = false;      ///< collect the calls of the ranks; only with `has_rank_variables`
  recorder::WatchOptions watch = {};  ///< of the ranks' calls; only with `has_rank_variables`
  int progress_fd = -1;  ///< passed to the first process as descriptor 3, e.g. for a progress bar; -1: none
};

struct JobResult {
  RankFailure failure;        ///< of the last attempt; exit code 0: all ranks succeeded
  Diagnosis diagnosis = {};   ///< of the same, as far as this machine's ranks show it
  bool is_suspected = false;  ///< the diagnosis is of ranks that may only have been slow
  int restarts = 0;
  long peak_rss_bytes = 0;  ///< summed over the processes of this machine
  /// Of the same attempt, by world rank: see CallLog.
  std::vector<std::vector<recorder::LoggedCall>> calls = {};
  std::uint64_t num_missed_calls = 0;
};

/// Runs the job. Returns when all processes of this machine have ended and the job is over on the other machines.
/// Throws ConfigError, before any rank runs, for inconsistent numbers, a port in use, or a program that cannot be run.
JobResult run_job(const JobOptions& options);

/// Returns the environment variables that make a process a rank: torchrun's.
std::map<std::string, std::string> rank_variables(const MachinesOptions& machines, const Attempt& attempt,
                                                  int local_rank);

/// Number of processes on each machine. Throws ConfigError if they do not divide evenly, or a number is out of range.
int processes_per_machine(const MachinesOptions& machines);

}  // namespace accel::launcher
