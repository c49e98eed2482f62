#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"

/// Which rank runs next. In parallel all do; in the serial schedules one at a time, with a baton that changes hands at
/// the ranks' calls, so that a seed decides the whole order of a run.
///
///     Baton baton({.kind = ScheduleKind::kRandom, .seed = 7}, /*num_ranks=*/4,
///                 [&] { explain_why_nobody_can_go_on(); });
///
/// Source of pct: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010.
namespace accel::sim {

enum class ScheduleKind { kParallel, kRoundRobin, kRandom, kPct };

struct RankSchedule {
  ScheduleKind kind = ScheduleKind::kParallel;
  std::uint64_t seed = 0;
  int pct_depth = 3;  // the number of ordering constraints that make a bug; 1 to never change a priority
  // How many turns the run is thought to have: priorities change among them. Unset: of any length, as likely among the
  // first 100 turns as between 1,000 and 100,000.
  std::optional<std::uint64_t> pct_events = {};
};

/// "parallel", "round-robin", "random" or "pct"; throws ConfigError for another name.
ScheduleKind schedule_of(const std::string& name);
std::string name_of(ScheduleKind kind);

/// Picks among the ranks that can run.
class SchedulePolicy {
 public:
  virtual ~SchedulePolicy() = default;
  /// One of `runnable` (sorted, not empty). `current` had the turn before, -1 at the start.
  virtual int next(const std::vector<int>& runnable, int current) = 0;
  /// `rank` waits by asking again and again: others first.
  virtual void demote(int /*rank*/) {}
};

/// Throws ConfigError for the parallel schedule, which picks nobody.
std::unique_ptr<SchedulePolicy> make_policy(const RankSchedule& options, int num_ranks);

/// Lets one rank run at a time.
///
/// Thread rule: each method from the thread of the rank that it names, which holds the baton, except `begin` (does not
/// yet) and `holder`, `abandon` (any thread). `wake` from the holder.
class Baton {
 public:
  /// `on_quiescent` is called by the last holder when no rank can run and some are blocked; it may wake some.
  Baton(const RankSchedule& options, int num_ranks, std::function<void()> on_quiescent);

  /// Returns when all ranks have begun and it is this one's turn.
  void begin(int rank);
  /// Another may have a turn.
  void yield(int rank);
  /// As `yield`, of a rank that asks whether something has happened.
  void poll(int rank);
  /// The rank cannot go on until it is woken. Returns when it has been, and has its turn.
  void block(int rank);
  /// The rank goes on when no other can, or all others only poll.
  void postpone(int rank);
  void leave(int rank);
  /// `rank` can run again when its turn comes; it may be blocked or not.
  void wake(int rank);
  struct Holder {
    int rank = -1;                                     // none
    std::chrono::steady_clock::time_point since = {};  // its last call
  };
  /// Who has its turn; from any thread.
  [[nodiscard]] Holder holder();
  /// From here on every rank runs freely: a holder that never comes back must not keep the others.
  void abandon();

 private:
  enum class State : char { kAbsent, kRunnable, kPostponed, kBlocked, kLeft };
  struct alignas(64) Turn {
    std::atomic<std::uint32_t> given{0};
  };

  int choose(int current);  // -1: nobody can run
  void pass_turn(int rank);
  void release_postponed_for(int polling);
  void pass(int from);
  void give(int rank);
  void await_turn(int rank);
  [[nodiscard]] bool somebody_is_blocked();

  const std::unique_ptr<SchedulePolicy> policy_;
  const std::function<void()> on_quiescent_;
  Mutex mutex_;
  std::vector<State> states_ ACCEL_GUARDED_BY(mutex_);
  std::set<int> polling_ ACCEL_GUARDED_BY(mutex_);  // since another than these had its turn
  int num_begun_ ACCEL_GUARDED_BY(mutex_) = 0;
  Holder holder_ ACCEL_GUARDED_BY(mutex_);
  std::vector<Turn> turns_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace accel::sim
