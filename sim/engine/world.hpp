#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/call.hpp"
#include "sim/engine/diagnosis.hpp"
#include "sim/engine/executor.hpp"

/// The ranks of one process and how they meet. Includes no torch header, so that the thread sanitizer can judge it.
///
///     World world({.num_ranks = 4});
///     run_ranks(world, [&](int rank) {
///       auto group = world.group("world", {0, 1, 2, 3});
///       auto meeting = world.arrive(*group, rank, {.op = "barrier"}, nullptr, [](auto) {});
///       world.wait(rank, *meeting);
///     });
///
/// A collective is a Meeting: the n-th call of every member under one group. The last rank to arrive compares the
/// calls and computes; the others are woken once. A rank that blocks is counted, so that the moment when nobody can go
/// on is known exactly, and is diagnosed at once.
///
/// Thread rule: all methods from any rank's thread; user code and `compute` run without a lock held.
namespace accel::sim {

class World;
struct Group;

using Participant = std::shared_ptr<void>;
/// Runs once per meeting on the last rank to arrive; participants are sorted by group rank.
using Compute = std::function<void(std::span<const Participant>)>;
/// Told once that a meeting has ended: null if it ended well.
using OnEnd = std::function<void(std::exception_ptr)>;

/// One collective, or one message between two ranks.
class Meeting {
 public:
  /// E.g. "all_reduce #17 of group world".
  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool has_ended() const { return state_.load(std::memory_order_acquire) != kOpen; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// The rank that sent, for an ended receive.
  [[nodiscard]] int source() const { return source_; }
  /// Null unless the meeting ended in an error.
  [[nodiscard]] std::exception_ptr error() const { return has_ended() ? error_ : nullptr; }

 private:
  friend class World;
  static constexpr std::uint32_t kOpen = 0, kEnded = 1;

  const Group* group_ = nullptr;
  std::uint64_t sequence_ = 0;
  bool is_message_ = false;
  int source_ = -1;
  std::chrono::steady_clock::time_point deadline_;
  std::vector<std::optional<Call>> calls_;  // by group rank; those that have arrived
  std::vector<Participant> participants_;
  int num_arrived_ = 0;
  std::vector<int> waiters_;  // world ranks
  std::vector<OnEnd> on_end_;
  std::exception_ptr error_;  // written before state_
  std::atomic<std::uint32_t> state_{kOpen};
};

/// Some ranks that meet under one name.
struct Group {
  std::string name;
  std::vector<int> ranks;  // world ranks, by group rank

 private:
  friend class World;
  struct Posted {  // one end of a message that waits for the other
    std::shared_ptr<Meeting> meeting;
    int source = -1, destination = -1, tag = 0;
    Call call;
    Participant participant;
    std::function<void(const Participant& sent, const Participant& received)> deliver;
  };
  std::vector<std::uint64_t> next_sequence;  // by group rank
  std::map<std::uint64_t, std::shared_ptr<Meeting>> open;
  std::deque<Posted> sends, receives;
};

struct WorldOptions {
  int num_ranks = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // Gloo's default; a running rank may take that long
};

class World {
 public:
  /// The most ranks that one process may hold; 4,096 blocking threads were tried.
  static constexpr int kMaxRanks = 4096;

  /// Throws ConfigError if the number of ranks is not in 1..kMaxRanks.
  explicit World(WorldOptions options);

  [[nodiscard]] int num_ranks() const { return options_.num_ranks; }
  [[nodiscard]] Executor& executor() { return *executor_; }

  /// The group of this name; made at its first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks);

  /// The calling rank joins the next collective of `group`; returns at once. Throws ReleasedError after a failure.
  std::shared_ptr<Meeting> arrive(Group& group, int group_rank, Call call, Participant participant, Compute compute);

  /// Messages. A send ends at once, its participant is handed to the receive that matches source, destination and tag,
  /// in order; `source` -1 receives from any rank, the lowest first.
  std::shared_ptr<Meeting> send(Group& group, int source, int destination, int tag, Call call, Participant participant);
  std::shared_ptr<Meeting> receive(Group& group, int source, int destination, int tag, Call call, Participant participant,
                                   std::function<void(const Participant& sent, const Participant& received)> deliver);

  /// Blocks the calling rank until the meeting has ended. Rethrows its error; DiagnosedError if nobody can go on.
  void wait(int rank, Meeting& meeting);

  /// Calls `on_end` once the meeting has ended, on whatever thread ends it; at once if it has.
  void when_ended(Meeting& meeting, OnEnd on_end);

  /// A rank has returned from its program, or thrown: all others are released.
  void leave(int rank, std::exception_ptr error);

  /// Fails every meeting whose deadline has passed.
  void check_deadlines();

 private:
  using Ended = std::vector<std::pair<std::shared_ptr<Meeting>, std::vector<OnEnd>>>;

  void end(std::shared_ptr<Meeting> meeting, std::exception_ptr error);
  void mark_ended(Meeting& meeting, std::exception_ptr error) ACCEL_REQUIRES(mutex_);
  Ended fail(std::exception_ptr error) ACCEL_REQUIRES(mutex_);
  Ended fail_if_quiescent() ACCEL_REQUIRES(mutex_);
  static void announce(const Ended& ended, const std::exception_ptr& error);
  void throw_if_failed() ACCEL_REQUIRES(mutex_);
  Diagnosis diagnose_hang() ACCEL_REQUIRES(mutex_);
  Diagnosis diagnose_timeout(const Meeting& meeting) ACCEL_REQUIRES(mutex_);
  void describe_absence(const Meeting& meeting, Diagnosis& diagnosis) ACCEL_REQUIRES(mutex_);
  std::string whereabouts(int rank) ACCEL_REQUIRES(mutex_);

  const WorldOptions options_;
  std::unique_ptr<Executor> executor_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_ ACCEL_GUARDED_BY(mutex_);
  std::vector<Meeting*> blocked_ ACCEL_GUARDED_BY(mutex_);  // by rank; what it waits for
  std::vector<bool> left_ ACCEL_GUARDED_BY(mutex_);
  std::vector<std::string> last_call_ ACCEL_GUARDED_BY(mutex_);
  int num_blocked_ ACCEL_GUARDED_BY(mutex_) = 0;
  int num_left_ ACCEL_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ ACCEL_GUARDED_BY(mutex_);
};

/// Runs `body(rank)` on a thread per rank, all started before any runs. Returns when all have ended.
/// Throws RunError with the errors of all ranks if one failed, ConfigError if the machine has not that many threads.
void run_ranks(World& world, const std::function<void(int rank)>& body);

}  // namespace accel::sim
