#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/output_lines.hpp"

/// The processes of one attempt on this machine, from their start to their end.
///
///     RankProcesses processes(options);
///     while (!processes.have_ended()) { poll(processes.waiting()); processes.advance(); }
///     if (processes.failure()) ...
///
/// Every process has a process group of its own where there are several, and what it started is ended with it. One
/// whose launcher dies is killed by the kernel. Thread rule: one thread, which lives as long.
namespace accel::launcher {

/// One process to start.
struct RankProcess {
  int rank = 0;
  std::map<std::string, std::string> environment;
  std::vector<int> cpus = {};  ///< it runs on these alone; empty: on all of this process's
  std::string log_dir = {};    ///< stdout.log and stderr.log of it; empty: none
  bool logs_output = true, logs_error = true;
};

struct RankProcessesOptions {
  std::vector<std::string> command;
  std::vector<RankProcess> ranks = {};
  std::map<std::string, std::string> default_environment = {};  ///< for what neither a rank nor this process has
  std::string prefix = "rank";  ///< "[rank 3] " stands in front of every line of rank 3; empty: nothing
  bool forwards_output =
      true;  ///< line by line; false: the processes write to this one's standard output and error themselves
  int progress_fd = -1;               ///< handed to the first rank as descriptor 3; -1: none
  const sigset_t* blocked = nullptr;  ///< signals that the processes begin with blocked; null: this process's
};

/// The first process that failed.
struct RankFailure {
  int rank = -1;
  int exit_code = 0;    ///< 128 + signal if it was killed
  std::string message;  ///< "rank 3 ended with exit code 1: error: ..."
};

class RankProcesses {
 public:
  /// Starts them. Throws ConfigError if the program cannot be run; none is left then.
  explicit RankProcesses(const RankProcessesOptions& options);
  /// Kills and waits for what is left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// What is to be polled for output.
  void add_to(std::vector<pollfd>& waiting) const;
  /// Hands output on, and notices who has ended. Kills those that outlive the time that `stop` gave them.
  void advance();
  /// A terminal's signals reach them without us.
  [[nodiscard]] bool are_in_this_group() const { return !own_groups_; }
  /// Sends a signal to every process that runs.
  void signal(int signal) const;
  /// SIGTERM to every process that runs, SIGKILL to those that are left after `grace`.
  void stop(std::chrono::milliseconds grace = std::chrono::seconds(2));
  /// SIGKILL to those that are left after `grace`.
  void end_after(std::chrono::milliseconds grace);

  /// All have ended, and all that they wrote is out.
  [[nodiscard]] bool have_ended() const;
  /// Set from the first failure on; its message is whole once all have ended. What fails after `stop` is no failure.
  [[nodiscard]] std::optional<RankFailure> failure() const;
  [[nodiscard]] long peak_rss_bytes() const { return peak_rss_bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    std::optional<int> exit_code = {};
    bool was_stopped = false;  // it ended after `stop`
    Clock::time_point ended_at = {};
    std::vector<OutputLines> streams = {};  // standard output, standard error
  };

  void start(const RankProcessesOptions& options, const RankProcess& rank);
  void reap(bool block);
  void note_end(Process& process, int status);

  bool own_groups_ = false;
  std::vector<Process> processes_;
  std::optional<Clock::time_point> deadline_;
  bool stopping_ = false;
  std::size_t failed_ = 0;
  int failed_code_ = 0;
  long peak_rss_bytes_ = 0;
};

}  // namespace accel::launcher
