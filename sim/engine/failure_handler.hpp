#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/diagnostics.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/fault_hooks.hpp"
#include "sim/engine/group_state.hpp"
#include "sim/engine/rank_calls.hpp"

namespace accel::sim {

/// How a run fails, by itself or by an injected fault: open meetings end in an error, so that no rank waits for ever.
///
/// Thread rule: `hang` from the rank's thread, the others from any.
class FailureHandler {
 public:
  FailureHandler(const WorldOptions& options, FailureRecord& record, GroupRegistry& groups, RankStates& states,
                 RankScheduler& scheduler, RankClocks& clocks, RankCalls& calls, const FaultHooks& faults);

  [[nodiscard]] const Diagnostics& diagnostics() const { return diagnostics_; }

  /// Ends the run on every rank.
  void fail(const std::exception_ptr& error);
  /// The rank has thrown: the others are released.
  void fail_by_rank(int rank, const std::exception_ptr& error);
  /// No rank can continue.
  void resolve_quiescence();
  /// Fails the run if the deadline of a meeting, or of a rank's turn in a serial schedule, has passed.
  void check_deadlines();

  /// The rank never continues, until the run fails.
  [[noreturn]] void hang(int rank);
  /// Ranks that `hang` holds.
  [[nodiscard]] std::vector<int> hanging();
  /// A meeting that all have joined and that is lost: it ends when the run fails, now if it has.
  void keep_until_end(const std::shared_ptr<Meeting>& meeting);

  /// The connections of these ranks are gone: their groups' collectives fail from now on with these errors.
  void disconnect(const std::vector<int>& ranks, const RankErrors& errors);
  /// Every rank that is blocked gets its error, and all groups are disconnected. `seconds` pass on the virtual clock.
  void time_out(double seconds, const RankErrors& errors);

 private:
  [[nodiscard]] Meetings open_meetings();
  [[nodiscard]] std::shared_ptr<Meeting> late_meeting();
  [[nodiscard]] int rank_of_endless_turn();
  [[nodiscard]] bool may_be_caused_by_fault();

  const WorldOptions& options_;
  FailureRecord& record_;
  GroupRegistry& groups_;
  RankStates& states_;
  RankScheduler& scheduler_;
  RankClocks& clocks_;
  RankCalls& calls_;
  const FaultHooks& faults_;
  const Diagnostics diagnostics_;
  Mutex mutex_;
  Meetings lost_ ACCEL_GUARDED_BY(mutex_);  // in no group's list of open ones
  std::vector<int> hanging_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
