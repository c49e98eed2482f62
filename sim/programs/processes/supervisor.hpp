#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/launch/output_lines.hpp"
#include "backends/process/shared_area.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/processes/process_watch.hpp"

namespace accel::programs {

/// The command of a run whose ranks are processes.
struct RankProgram {
  std::vector<std::string> command;  ///< empty: another process starts the ranks
  std::map<std::string, std::string> environment;
  std::vector<int> descriptors = {};  ///< that the processes inherit
  bool forks_ranks = false;     ///< one process forks all ranks, as Python's does; else the command is started per rank
  std::string prefix = "rank";  ///< "[rank 3] " precedes every line of rank 3; empty: none
  pid_t starter = -1;           ///< the child of this process that starts the ranks if `command` is empty; -1: unknown
  bool watches_processes = false;  ///< nobody records the ends of the ranks' processes, which are others' children
};

/// The value of LD_PRELOAD with which process::write_watcher is loaded before a program.
std::string preload_of_write_watcher();
/// The same program with process::write_watcher loaded before it, which faults of its files need.
RankProgram with_watched_writes(RankProgram program);

/// Starts the processes of the ranks, forwards their output, and tells the run when one has ended.
///
/// A rank's end reaches its proxy in the shared area; the supervisor acts where the proxy is blocked in a collective.
/// After a failure of the run it ends the processes that do not end by themselves. Thread rule: a thread of its own;
/// the methods from any thread.
class Supervisor {
 public:
  /// Throws ConfigError if the program cannot be run.
  Supervisor(RankProgram program, std::shared_ptr<process::SharedArea> area);
  /// Ends the processes that still run.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  [[nodiscard]] const std::shared_ptr<process::SharedArea>& area() const { return area_; }
  /// Waits until the ranks are about to start. Returns the exit code of a program that has ended before.
  std::optional<int> wait_until_ready();
  /// From here on the ends of processes are those of this world's ranks.
  void watch(std::shared_ptr<sim::World> world);
  /// Whether the supervisor ended the rank, because the run had failed.
  [[nodiscard]] bool has_stopped(int rank) const { return ranks_[rank].was_stopped; }
  /// Why the supervisor ended the rank before the run had failed; "" if it did not.
  [[nodiscard]] std::string reason_of(int rank);
  /// Waits until all processes have ended and their output was forwarded.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    std::vector<launcher::OutputLines> streams = {};
    std::atomic<bool> was_stopped{false};
    bool was_reported = false;                   // its end, to the world
    int num_checks_stopped = 0;                  // in a row
    std::string reason = {};                     // under mutex_
    std::unique_ptr<ProcessWatch> process = {};  // if nobody else records its end
  };
  struct Child {
    pid_t pid = -1;
    int rank = -1;  // -1: forks the ranks
    std::optional<int> status = {};
  };

  void run();
  void start();
  void end_children();
  std::vector<int> open_streams(int rank);
  void forward_output(std::chrono::milliseconds limit);
  void reap();
  void record_ends_of_others();
  void report_ends();
  void report_stopped_ranks();
  std::shared_ptr<sim::World> world();
  [[nodiscard]] std::string after_last_call(sim::World& world, int rank) const;
  void stop_late_ranks();
  [[nodiscard]] bool have_ended() const;

  const RankProgram program_;
  launcher::LaunchOutput output_;
  const std::shared_ptr<process::SharedArea> area_;
  std::vector<Rank> ranks_;
  std::vector<Child> children_;
  std::mutex mutex_;
  std::shared_ptr<sim::World> world_;                      // under mutex_
  std::optional<Clock::time_point> failed_at_, ended_at_;  // of the run; of the last child
  Clock::time_point next_check_for_stops_ = {};
  std::exception_ptr start_error_;
  std::atomic<bool> has_started_{false}, must_end_{false}, is_finishing_{false}, is_over_{false};
  std::thread thread_;
};

}  // namespace accel::programs
