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
/// Thread rule: each method from the thread of the rank that it names, which has the turn, except `begin` (has it not
/// yet), `holder` and `abandon` (any thread). `wake` from the rank that has the turn.
class RankTurns {
 public:
  /// `on_quiescent` is called by the last holder when no rank can run and some are blocked; it may wake some.
  RankTurns(const RankSchedule& schedule, int num_ranks, std::function<void()> on_quiescent);

  /// Returns when all ranks have begun and it is this one's turn.
  void begin(int rank);
  /// Another may have a turn.
  void yield(int rank);
  /// As `yield`, of a rank that asks whether something has happened.
  void poll(int rank);
  /// The rank cannot continue until it is woken. Returns when it has been, and has its turn.
  void block(int rank);
  /// The rank continues when no other can, or all others only poll.
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
  /// From here on every rank runs freely: a holder that never returns must not block the others.
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

  const std::unique_ptr<TurnPolicy> policy_;
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
