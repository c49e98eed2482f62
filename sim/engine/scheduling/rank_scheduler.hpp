#pragma once

#include <functional>
#include <memory>

#include "sim/engine/scheduling/completion.hpp"
#include "sim/engine/scheduling/rank_schedule.hpp"
#include "sim/engine/scheduling/rank_turns.hpp"

namespace accel::sim {

/// Which ranks run, which are blocked, and the moment when no rank can continue.
///
///     auto scheduler = make_rank_scheduler({}, /*num_ranks=*/4, [&] { diagnose_hang(); });
///     scheduler->block(rank, completion);   // a rank
///     scheduler->end(completion);           // who ends its wait
///
/// Thread rule: methods that name a rank from its thread, except `has_turn`; the others from any thread. No lock is
/// held while a rank waits.
class RankScheduler {
 public:
  virtual ~RankScheduler() = default;

  /// One rank at a time.
  [[nodiscard]] virtual bool is_serial() const = 0;

  /// Returns when the rank may run for the first time.
  virtual void begin(int rank) = 0;
  /// Another may have a turn.
  virtual void yield(int rank) = 0;
  /// As `yield`, of a rank that asks whether something has happened.
  virtual void poll(int rank) = 0;
  /// The rank pauses: in a serial schedule others go first.
  virtual void postpone(int rank) = 0;
  /// Returns when `completion` has ended.
  virtual void block(int rank, Completion& completion) = 0;
  virtual void leave(int rank) = 0;

  /// Marks a claimed completion as ended, calls its callbacks and wakes the ranks that wait for it.
  virtual void end(Completion& completion) = 0;

  /// Whether it may run now.
  [[nodiscard]] virtual bool has_turn(int rank) = 0;
  /// Who has its turn; no rank if all run at once.
  [[nodiscard]] virtual RankTurns::Holder holder() = 0;
  /// From here on every rank runs freely.
  virtual void abandon() = 0;
};

/// `on_quiescent` is called when no rank can continue and some are blocked; it may end completions. From the thread of
/// the last rank that blocked or left, or of who ended a completion that freed nobody.
std::unique_ptr<RankScheduler> make_rank_scheduler(const RankSchedule& schedule, int num_ranks,
                                                   std::function<void()> on_quiescent);

}  // namespace accel::sim
