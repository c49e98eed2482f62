#pragma once

#include "sim/engine/failure_handler.hpp"
#include "sim/engine/fault_hooks.hpp"
#include "sim/engine/group_state.hpp"
#include "sim/engine/rank_calls.hpp"
#include "sim/engine/transfer_times.hpp"

namespace accel::sim {

/// Carries out messages between two ranks. A send completes at once, or with a capacity when there is room for it
/// (Mailbox::add_send); its participant is handed to the receive that matches source, destination and tag, in order.
///
/// Stateless: the state is in the group's Mailbox. Thread rule: call `send` from the source's thread, `receive` from
/// the destination's; `deliver` runs without a lock held.
class Messages {
 public:
  Messages(const FaultHooks& faults, RankClocks& clocks, RankCalls& calls, TransferTimes& transfers,
           FailureHandler& failures, std::optional<int> send_capacity)
      : faults_(faults),
        clocks_(clocks),
        calls_(calls),
        transfers_(transfers),
        failures_(failures),
        send_capacity_(send_capacity) {}

  std::shared_ptr<Meeting> send(EngineGroup& group, int source, int destination, int tag, Call call,
                                Participant participant);
  /// `source` -1 receives from any rank and prefers the lowest.
  std::shared_ptr<Meeting> receive(EngineGroup& group, int source, int destination, int tag, Call call,
                                   Participant participant, Deliver deliver);

 private:
  std::shared_ptr<Meeting> begin(EngineGroup& group, bool sends, int source, int destination, const Call& call);
  void complete(const Mailbox::Posted& receive, const Mailbox::Posted& send);
  /// Ends the sends that waited for the receive of this one, which was posted at that virtual time.
  void end_sends(EngineGroup& group, const Mailbox::Posted& send, double received_at);

  const FaultHooks& faults_;
  RankClocks& clocks_;
  RankCalls& calls_;
  TransferTimes& transfers_;
  FailureHandler& failures_;
  const std::optional<int> send_capacity_;
};

}  // namespace accel::sim
