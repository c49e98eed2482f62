#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"

namespace accel::sim {

/// Lets one rank run at a time. The turn passes to another rank at the ranks' calls.
///
///     RankTurns turns({.kind = ScheduleKind::kRandom, .seed = 7}, /*num_ranks=*/4, [&] { diagnose_hang(); });
///
/// Thread rule: call each method from the thread of the rank that it accepts, which must have the turn. Exceptions:
/// `begin` (before the first turn), `holder` and `abandon` (any thread), `wake` (from the rank that has the turn).
class RankTurns {
 public:
  /// `on_quiescent` is called by the last holder when no rank can run and some are blocked; it may wake some.
  RankTurns(const RankSchedule& schedule, int num_ranks, std::function<void()> on_quiescent);

  /// Blocks until all ranks have begun and this one has the turn.
  void begin(int rank);
  /// Lets another rank have the turn.
  void yield(int rank);
  /// Like `yield`, for a rank that polls for an event.
  void poll(int rank);
  /// Blocks the rank until it has been woken and has the turn.
  void block(int rank);
  /// Postpones the rank until no other rank can run, or all others only poll.
  void postpone(int rank);
  void leave(int rank);
  /// Makes `rank` runnable if it is blocked.
  void wake(int rank);
  struct Holder {
    int rank = -1;                                     // -1: none
    std::chrono::steady_clock::time_point since = {};  // time of its last call
  };
  /// Returns the rank that has the turn; callable from any thread.
  [[nodiscard]] Holder holder();
  /// Lets every rank run freely from now on, so that a holder that never returns does not block the others.
  void abandon();

 private:
  enum class State : char { kAbsent, kRunnable, kPostponed, kBlocked, kLeft };
  struct alignas(64) Turn {
    std::atomic<std::uint32_t> given{0};
  };

  int choose(int current);  // -1: no rank can run
  void pass_turn(int rank);
  void release_postponed_for(int polling);
  void pass(int from);
  void give(int rank);
  void await_turn(int rank);
  [[nodiscard]] bool any_rank_is_blocked();

  const std::unique_ptr<TurnPolicy> policy_;
  const std::function<void()> on_quiescent_;
  Mutex mutex_;
  std::vector<State> states_ ACCEL_GUARDED_BY(mutex_);
  std::set<int> polling_ ACCEL_GUARDED_BY(mutex_);  // ranks that polled since another rank had the turn
  int num_begun_ ACCEL_GUARDED_BY(mutex_) = 0;
  Holder holder_ ACCEL_GUARDED_BY(mutex_);
  std::vector<Turn> turns_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace accel::sim
