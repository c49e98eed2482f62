#pragma once

#include "sim/engine/failure_handler.hpp"
#include "sim/engine/fault_hooks.hpp"
#include "sim/engine/group_state.hpp"
#include "sim/engine/rank_calls.hpp"
#include "sim/engine/transfer_times.hpp"

namespace accel::sim {

/// Carries out collectives: the ranks of a group arrive, and the last one compares their calls and computes.
///
/// Stateless: the state is in the group's CollectiveChain. Thread rule: call `arrive` from the rank's thread;
/// `compute` runs without a lock held.
class Rendezvous {
 public:
  Rendezvous(const WorldOptions& options, EventLog& log, const FaultHooks& faults, RankClocks& clocks, RankCalls& calls,
             TransferTimes& transfers, FailureHandler& failures);

  /// Joins the next collective of `group`; does not block. Throws ReleasedError after a failure.
  std::shared_ptr<Meeting> arrive(EngineGroup& group, int group_rank, Call call, Participant participant,
                                  const Compute& compute);

 private:
  void complete(const std::shared_ptr<Meeting>& meeting, int rank, const Compute& compute);
  void fail(Meeting& meeting, const std::exception_ptr& error);
  std::exception_ptr run(const Compute& compute, const Meeting& meeting,
                         const std::vector<Corruption>& corruptions) const;

  const WorldOptions& options_;
  EventLog& log_;
  const FaultHooks& faults_;
  RankClocks& clocks_;
  RankCalls& calls_;
  TransferTimes& transfers_;
  FailureHandler& failures_;
};

}  // namespace accel::sim
