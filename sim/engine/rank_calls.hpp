#pragma once

#include <chrono>
#include <exception>

#include "sim/engine/event_log.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_clocks.hpp"
#include "sim/engine/rank_states.hpp"
#include "sim/engine/scheduling/rank_scheduler.hpp"
#include "sim/engine/world_options.hpp"

namespace accel::sim {

/// A wait that has begun.
struct OpenWait {
  RankClocks::Reading begin;
  bool is_logged = false;
};

/// The steps that collectives and messages share: how a rank's call begins, ends and waits, and how a meeting ends.
///
/// Thread rule: call methods that accept a rank from its thread, `end_meeting` from any. No lock is held in a wait.
class RankCalls {
 public:
  RankCalls(const WorldOptions& options, EventLog& log, const FailureRecord& failures, RankStates& states,
            RankScheduler& scheduler, RankClocks& clocks);

  /// Enters the engine from the rank's own code: another rank may get the turn. Throws if the run has failed.
  void begin(int rank);
  /// Records what the rank calls, for the event log and for a diagnosis.
  void record_call(int rank, std::string_view event, const LastCall& call);
  /// Returns to the rank's own code.
  void end(int rank) { clocks_.begin_compute(rank); }

  /// Blocks the rank until the meeting has ended, and throws its error.
  void wait(int rank, Meeting& meeting);
  /// The parts of `wait`, between which the rank sleeps.
  OpenWait begin_wait(int rank, Meeting& meeting);
  void end_wait(int rank, const Meeting& meeting, const OpenWait& wait);
  bool poll(int rank, const Meeting& meeting);
  /// Blocks the rank until the completion has ended, or its sleep has returned early.
  void block(int rank, Completion& completion, std::span<const RankWait> waits);
  void block(int rank, Meeting& meeting);

  /// Ends the meeting and wakes its ranks; does nothing if it has ended. `rank_errors`: what each rank sees,
  /// else `error`.
  void end_meeting(Meeting& meeting, const std::exception_ptr& error, RankErrors rank_errors = nullptr);

 private:
  const WorldOptions& options_;
  EventLog& log_;
  const FailureRecord& failures_;
  RankStates& states_;
  RankScheduler& scheduler_;
  RankClocks& clocks_;
};

}  // namespace accel::sim
