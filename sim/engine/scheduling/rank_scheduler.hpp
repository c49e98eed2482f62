#pragma once

#include <functional>
#include <memory>

#include "sim/engine/scheduling/completion.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/engine/scheduling/rank_turns.hpp"

namespace accel::sim {

/// Tracks which ranks run and which are blocked, and detects the moment when no rank can continue.
///
///     auto scheduler = make_rank_scheduler({}, /*num_ranks=*/4, [&] { diagnose_hang(); });
///     scheduler->block(rank, completion);   // a rank
///     scheduler->end(completion);           // the thread that ends its wait
///
/// Thread rule: call methods that accept a rank from its thread, except `has_turn`; the others from any thread. No lock
/// is held while a rank waits.
class RankScheduler {
 public:
  virtual ~RankScheduler() = default;

  /// Returns whether one rank runs at a time.
  [[nodiscard]] virtual bool is_serial() const = 0;

  /// Blocks until the rank may run for the first time.
  virtual void begin(int rank) = 0;
  /// Lets another rank have the turn.
  virtual void yield(int rank) = 0;
  /// Like `yield`, for a rank that polls for an event.
  virtual void poll(int rank) = 0;
  /// Pauses the rank: in a serial schedule other ranks run first.
  virtual void postpone(int rank) = 0;
  /// Blocks until `completion` has ended, or `sleep` has returned early.
  virtual void block(int rank, Completion& completion) = 0;
  virtual void leave(int rank) = 0;

  /// Marks a claimed completion as ended, calls its callbacks and wakes the ranks that wait for it.
  virtual void end(Completion& completion) = 0;

  /// Returns whether the rank may run now.
  [[nodiscard]] virtual bool has_turn(int rank) = 0;
  /// Returns the rank that has the turn; no rank if all run at once.
  [[nodiscard]] virtual RankTurns::Holder holder() = 0;
  /// Lets every rank run freely from now on.
  virtual void abandon() = 0;
};

/// `on_quiescent` is called when no rank can continue and some are blocked; it may end completions. It runs on the
/// thread of the last rank that blocked or left, or of the thread that ended a completion without releasing a rank.
/// `sleep` is for ranks that run at once; null: they are woken.
std::unique_ptr<RankScheduler> make_rank_scheduler(const RankSchedule& schedule, int num_ranks,
                                                   std::function<void()> on_quiescent, SleepUntilEnded sleep = nullptr);

}  // namespace accel::sim
