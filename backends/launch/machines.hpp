#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/link.hpp"
#include "backends/launch/rank_processes.hpp"

/// What the launchers of several machines agree on: when an attempt begins, and how it has ended.
///
/// Machine 0 listens on main_process_port; the others connect to it, and try again while nobody answers. An attempt
/// begins once all are there, with a port of its own for the ranks' store, and it is over for all of them as soon as a
/// rank of one has failed, or a machine has not been heard for a while; then all begin the next one, or end with the
/// same message. Each machine says that it is alive every few seconds. On one machine nothing is sent, and no port is
/// opened.
///
/// Thread rule: one thread. Nothing here waits: `advance` takes what has come.
namespace accel::launcher {

struct MachinesOptions {
  int num_machines = 1;
  int machine_rank = 0;
  int num_processes = 1;  ///< over all machines
  std::string main_address = "127.0.0.1";
  int main_port = 29500;
  int max_restarts = 0;  ///< machine 0's counts
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds alive_interval = std::chrono::seconds(5);
  int alive_missed_max = 3;  ///< a machine that has not been heard for so many intervals is lost
};

/// An attempt, as all machines begin it.
struct Attempt {
  int number = 0;
  int max_restarts = 0;
  int store_port = 0;  ///< rank 0 serves the store there
};

/// How an attempt has ended, for all machines.
struct Verdict {
  bool restarts = false;
  RankFailure failure;  ///< exit code 0: all ranks ended well
};

class Machines {
 public:
  /// Throws ConfigError if machine 0 cannot listen on its port.
  explicit Machines(const MachinesOptions& options);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  /// This machine is ready for the next attempt. Afterwards there is an attempt or a verdict, sooner or later.
  void join();
  [[nodiscard]] const std::optional<Attempt>& attempt() const { return attempt_; }
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  /// All ranks of this machine have ended well.
  void report_done();
  /// A rank of this machine has failed; `is_final`: there is to be no other attempt.
  void report_failure(const RankFailure& failure, bool is_final = false);

  void add_to(std::vector<pollfd>& waiting) const;
  void advance();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Link link;
    bool joined = false, done = false;
  };

  [[nodiscard]] bool is_main() const { return options_.machine_rank == 0; }
  void begin_if_all_joined();
  void end_if_all_done();
  void fail(const RankFailure& failure, bool is_final);
  void decide(Verdict verdict);
  void say_alive();
  void advance_main();
  void advance_other();
  void take_joins();
  void hear(int machine, const std::string& line);
  void hear_from_main(const std::string& line);
  void lose(int machine);
  void check_join_timeout();
  std::string missing_machines() const;

  MachinesOptions options_;
  std::unique_ptr<Listener> listener_;  // machine 0's
  std::vector<Link> strangers_;         // have not said which machine they are
  std::map<int, Peer> peers_;           // machine 0: the others; elsewhere: machine 0
  int attempts_ = 0;
  bool joined_ = false, done_ = false;
  std::optional<Attempt> attempt_;
  std::optional<Verdict> verdict_;
  Clock::time_point join_began_, said_alive_, tried_to_connect_;
};

}  // namespace accel::launcher
