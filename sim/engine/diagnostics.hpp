#pragma once

#include <chrono>
#include <string>

#include "reference/diagnosis/diagnosis.hpp"
#include "reference/diagnosis/job_state.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/meeting.hpp"
#include "sim/engine/rank_states.hpp"
#include "sim/engine/scheduling/rank_scheduler.hpp"

namespace accel::sim {

/// Diagnoses a collective that all members have joined with calls that differ.
Diagnosis diagnose_difference(const Meeting& meeting);

/// Explains why no rank can continue. Called when the last running rank blocks or leaves, or when a deadline passes.
///
/// Stateless. Thread rule: any thread.
class Diagnostics {
 public:
  Diagnostics(RankStates& states, RankScheduler& scheduler, const FailureRecord& failures,
              std::chrono::milliseconds timeout)
      : states_(states), scheduler_(scheduler), failures_(failures), timeout_(timeout) {}

  /// Diagnoses a run in which every rank is blocked or has left.
  [[nodiscard]] Diagnosis hang() const;
  /// Diagnoses a meeting whose deadline has passed.
  [[nodiscard]] Diagnosis timeout(const Meeting& meeting) const;
  /// Diagnoses a rank that keeps its turn for too long.
  [[nodiscard]] Diagnosis stalled_turn(int rank) const;
  /// Describes what a rank is doing, by its last call: "waits in all_reduce #17 of group world (train.cpp:42)".
  [[nodiscard]] std::string describe_rank(int rank) const;

 private:
  [[nodiscard]] RankState rank_state(int rank) const;
  [[nodiscard]] std::vector<RankState> rank_states() const;

  RankStates& states_;
  RankScheduler& scheduler_;
  const FailureRecord& failures_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace accel::sim
