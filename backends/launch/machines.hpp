#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/link.hpp"
#include "backends/launch/ports.hpp"
#include "backends/launch/rank_processes.hpp"

/// Coordinates the launchers of several machines: they agree on when an attempt begins and how it ended.
///
/// Machine 0 listens on main_process_port; the others connect to it and retry while nobody answers. An attempt begins
/// when all machines have joined, with a separate port for the ranks' store. It is over on all machines as soon as a
/// rank fails or a machine does not respond for some time; then all restart, or end with the same message. Each machine
/// sends an "alive" message every few seconds. On a single machine nothing is sent and no port is opened.
///
/// Anyone may connect to the port, hence the limits: a connection without a proof within 5 s that it comes from a
/// launcher with the same secret is closed, and so is the oldest one if there are too many.
///
/// Thread rule: one thread. Only the destructor of machine 0 waits, for at most 2 s; `advance` handles what has
/// arrived.
namespace accel::launcher {

struct MachinesOptions {
  int num_machines = 1;
  int machine_rank = 0;
  int num_processes = 1;  ///< over all machines
  std::string main_address = "127.0.0.1";
  int main_port = 29500;
  int max_restarts = 0;     ///< the value of machine 0 applies
  std::string secret = {};  ///< equal on all machines; others cannot join. Empty: whoever reaches the port can
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds alive_interval = std::chrono::seconds(5);
  int alive_missed_max = 3;  ///< a machine that is silent for this many intervals is lost
};

/// An attempt, with equal values on all machines.
struct Attempt {
  int number = 0;
  int max_restarts = 0;
  int store_port = 0;  ///< rank 0 serves the TCPStore on this port of machine 0
};

/// The outcome of an attempt on all machines.
struct JobOutcome {
  bool restarts = false;
  RankFailure failure;  ///< exit code 0: all ranks succeeded
};

class Machines {
 public:
  /// Throws ConfigError if machine 0 cannot listen on its port.
  explicit Machines(const MachinesOptions& options);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  /// Declares this machine ready for the next attempt. Then call advance() until there is an attempt or a outcome.
  void join();
  [[nodiscard]] const std::optional<Attempt>& attempt() const { return attempt_; }
  [[nodiscard]] const std::optional<JobOutcome>& outcome() const { return outcome_; }
  /// Reports that all ranks of this machine have succeeded.
  void report_done();
  /// Reports that no rank of this machine has succeeded, in an elastic job: those of another one may.
  void report_lost(const RankFailure& failure);
  /// From here on the job survives the loss of machines.
  void set_elastic() { is_elastic_ = true; }
  /// Reports that a rank of this machine has failed. `is_final`: do not restart.
  void report_failure(const RankFailure& failure, bool is_final = false);

  /// Adds the descriptors to poll.
  void add_to(std::vector<pollfd>& waiting) const;
  /// Handles messages that have arrived, and time-outs. Does not wait.
  void advance();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    LauncherLink link;
    bool joined = false, done = false;
    std::string nonce = {};   // of this machine, for the proof of machine 0
    bool is_trusted = false;  // the peer has proved that it holds the secret
  };
  // An accepted connection, before it joins.
  struct Newcomer {
    LauncherLink link;
    std::string nonce;
    Clock::time_point accepted_at;
    bool is_over = false;
  };

  [[nodiscard]] bool is_main() const { return options_.machine_rank == 0; }
  void begin_if_all_joined();
  void end_if_all_done();
  void fail(const RankFailure& failure, bool is_final);
  void decide(JobOutcome outcome);
  void send_alive();
  void advance_main();
  void advance_other();
  void accept_joins();
  void hear_newcomer(Newcomer& newcomer);
  void hear(int machine, const std::string& line);
  void handle_main_message(Peer& peer, const std::string& line);
  void lose(int machine);
  void check_join_timeout();
  std::string missing_machines() const;

  MachinesOptions options_;
  std::unique_ptr<LauncherListener> listener_;  // on machine 0 only
  std::deque<Newcomer> newcomers_;              // the oldest first
  std::string last_refusal_;                    // why machine 0 has refused the last connection
  std::map<int, Peer> peers_;                   // by machine; on machine 0 all others, elsewhere only machine 0
  int attempts_ = 0;
  std::unique_ptr<PortClaim> store_port_;  // of the attempt, unless it is main_port
  bool joined_ = false, done_ = false;
  bool is_elastic_ = false, has_success_ = false;  // of an elastic attempt: whether a machine has ended well
  std::optional<RankFailure> lost_;                // how the first machine without success has failed
  std::optional<Attempt> attempt_;
  std::optional<JobOutcome> outcome_;
  Clock::time_point join_started_at_, alive_sent_at_, last_connect_at_;
  int num_connects_ = 0;  // attempts to reach machine 0, over all its addresses
};

}  // namespace accel::launcher
