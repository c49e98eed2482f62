#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/output_lines.hpp"
#include "reference/recorder/ending.hpp"
#include "reference/recorder/job_reader.hpp"

/// The processes of one attempt on this machine.
///
///     RankProcesses processes(options);
///     while (!processes.have_ended()) { poll(processes.waiting()); processes.advance(); }
///     if (processes.failure()) ...
///
/// If there are several processes, each has its own process group, and its descendants are ended with it. The kernel
/// kills the processes when the launcher dies. Thread rule: one thread, which must outlive the processes.
namespace accel::launcher {

/// One process to start.
struct RankProcess {
  int rank = 0;
  std::map<std::string, std::string> environment;
  std::vector<int> cpus = {};  ///< CPUs to which it is pinned; empty: those of this process
  std::string log_dir = {};    ///< folder of its stdout.log and stderr.log; empty: none
  bool logs_output = true, logs_error = true;
};

struct RankProcessesOptions {
  std::vector<std::string> command;
  std::vector<RankProcess> ranks = {};
  std::map<std::string, std::string> default_environment = {};  ///< for variables that neither a rank nor we set
  std::string prefix = "rank";  ///< "[rank 3] " precedes every line of rank 3; empty: no prefix
  bool forwards_output =
      true;  ///< forward output by line; false: the processes inherit this process's standard output and error
  LaunchOutput* output = nullptr;     ///< receives the lines; null: only without `forwards_output`
  int progress_fd = -1;               ///< passed to the first rank as descriptor 3; -1: none
  int record_fd = -1;                 ///< of a JobRecord, passed to every rank; -1: none
  const sigset_t* blocked = nullptr;  ///< initially blocked signals; null: those of this process
};

/// The first process that failed.
struct RankFailure {
  int rank = -1;        ///< -1: no single one
  int exit_code = 0;    ///< 128 + signal if it was killed
  std::string message;  ///< "rank 3 ended with exit code 1: error: ..."
};

/// Whether the launcher has diagnosed the ranks; 3 is also the exit code of a rank that says so.
inline bool is_diagnosis(const RankFailure& failure) {
  return failure.rank < 0 && failure.exit_code == recorder::kExitCodeOfDiagnosis;
}

class RankProcesses {
 public:
  /// Starts the processes. Throws ConfigError if the program cannot be run, after ending those already started.
  explicit RankProcesses(const RankProcessesOptions& options);
  /// Kills processes that still run, and waits for them.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Starts the process of a rank again, which has ended; only the new one counts. Throws ConfigError.
  void start_anew(const RankProcess& rank);
  /// Adds the descriptors of output that can be forwarded now.
  void add_to(std::vector<pollfd>& waiting) const;
  /// Forwards output, reaps processes that have ended, and kills those that outlive the grace period of `stop`.
  void advance();
  /// Whether the processes are in this process group, so that signals of the terminal reach them directly.
  [[nodiscard]] bool are_in_this_group() const { return !own_groups_; }
  /// Sends a signal to every running process.
  void signal(int signal) const;
  /// Sends a signal to the running processes that handle or ignore it.
  void signal_handlers(int signal) const;
  /// Sends SIGTERM to every running process, and SIGKILL after `grace` to those that still run.
  void stop(std::chrono::milliseconds grace = std::chrono::seconds(2));
  /// Sends SIGKILL after `grace` to processes that still run.
  void end_after(std::chrono::milliseconds grace);

  /// All processes have ended, and their output has been forwarded.
  [[nodiscard]] bool have_ended() const;
  /// The first failure, if any. Its message is complete once all processes have ended. Ends after `stop` do not count.
  [[nodiscard]] std::optional<RankFailure> failure() const;
  /// The same for one rank; absent if it has not failed.
  [[nodiscard]] std::optional<RankFailure> failure_of(int rank) const;
  /// Whether a process has ended with exit code 0, not by `stop`.
  [[nodiscard]] bool has_success() const;
  /// How the processes have ended, in their order. Ends after `stop` do not count.
  [[nodiscard]] std::vector<recorder::ProcessEnd> ends() const;
  [[nodiscard]] long peak_rss_bytes() const { return peak_rss_bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    std::optional<int> exit_code = {};
    bool was_stopped = false;  // ended after `stop`
    bool was_killed = false;   // by a signal
    Clock::time_point ended_at = {};
    std::vector<OutputLines> streams = {};  // standard output, standard error
  };

  Process started(const RankProcess& rank) const;
  void reap(bool block);
  void record_exit(Process& process, int status);
  void note_failure(const Process& process);
  [[nodiscard]] RankFailure failure_of(const Process& process) const;

  const RankProcessesOptions options_;
  const bool own_groups_;
  std::vector<Process> processes_;
  std::optional<Clock::time_point> deadline_;
  bool stopping_ = false;
  std::size_t failed_ = 0;
  int failed_code_ = 0;
  long peak_rss_bytes_ = 0;
};

}  // namespace accel::launcher
