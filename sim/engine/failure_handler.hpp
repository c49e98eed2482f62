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

/// Fails a run, because of an error or an injected fault: open meetings end in an error, so that no rank waits forever.
///
/// Thread rule: call `hang` from the rank's thread, the others from any thread.
class FailureHandler {
 public:
  FailureHandler(const WorldOptions& options, FailureRecord& record, GroupRegistry& groups, RankStates& states,
                 RankScheduler& scheduler, RankClocks& clocks, RankCalls& calls, const FaultHooks& faults);

  [[nodiscard]] const Diagnostics& diagnostics() const { return diagnostics_; }

  /// Ends the run on every rank.
  void fail(const std::exception_ptr& error);
  /// Handles a rank that has thrown: releases the others.
  void fail_by_rank(int rank, const std::exception_ptr& error);
  /// Handles the state in which no rank can continue.
  void resolve_quiescence();
  /// Fails the run if the deadline of a meeting, or of a rank's turn in a serial schedule, has passed.
  void check_deadlines();

  /// Blocks the rank until the run fails.
  [[noreturn]] void hang(int rank);
  /// Returns the ranks that are blocked in `hang`.
  [[nodiscard]] std::vector<int> hanging();
  /// Keeps a meeting that all have joined and whose message was lost. It ends when the run fails, or now if it has.
  void keep_open_until_failure(const std::shared_ptr<Meeting>& meeting);

  /// The process of the rank ends, of which its peers see `errors`; after `notice_seconds` all know.
  void end_process(int rank, const RankErrors& errors, double notice_seconds);
  /// Starts the process of a rank anew. Returns false, and does nothing, unless there have been so many changes.
  bool start_process(int rank, double notice_seconds, std::size_t num_changes);
  /// Ends and new starts, in their order.
  [[nodiscard]] std::vector<ProcessChange> process_changes();
  /// Blocks the rank until the meeting, which has no group, is ended, or the run fails.
  void sleep(int rank, const std::shared_ptr<Meeting>& meeting);
  /// Breaks the connections of these ranks: all later collectives of their groups fail with these errors.
  void disconnect(const std::vector<int>& ranks, const RankErrors& errors);
  /// Ends the wait of every blocked rank with its error and breaks all groups. Advances the virtual clocks by
  /// `seconds`.
  void time_out(double seconds, const RankErrors& errors);

 private:
  [[nodiscard]] Meetings open_meetings();
  [[nodiscard]] std::shared_ptr<Meeting> late_meeting();
  [[nodiscard]] int rank_of_stalled_turn();
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
  Meetings lost_ ACCEL_GUARDED_BY(mutex_);  // not in any group's list of open meetings
  std::vector<int> hanging_ ACCEL_GUARDED_BY(mutex_);
  std::vector<ProcessChange> changes_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
