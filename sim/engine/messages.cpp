// Point-to-point messages. Unlike a collective, a message completes on the thread of whichever end comes
// second. The backend passes a copy of the tensor, so the sender may change its own at once.
#include "sim/engine/messages.hpp"

namespace accel::sim {

// The part that send and receive share. The returned meeting has already ended if the connection is broken.
std::shared_ptr<Meeting> Messages::begin(EngineGroup& group, bool sends, int source, int destination,
                                         const Call& call) {
  const int rank = group.ranks[sends ? source : destination], peer = sends ? destination : source;
  calls_.begin(rank);
  const auto sequence = group.state->messages.count(sends, source, destination);
  faults_.before_message(rank, group, sequence, call);
  calls_.record_call(rank, sends ? "send" : "receive",
                     {.op = sends ? Collective::kSend : Collective::kRecv,
                      .group = &group,
                      .sequence = static_cast<std::int64_t>(sequence),
                      .peer = peer < 0 ? kAnyPeer : group.ranks[peer],
                      .where = call.where});
  if (group.state->connection.is_broken()) return failed_meeting(group, call);
  return std::make_shared<Meeting>(group, call, sequence);
}

std::shared_ptr<Meeting> Messages::send(EngineGroup& group, int source, int destination, int tag, Call call,
                                        Participant participant) {
  const int rank = group.ranks[source];
  auto meeting = begin(group, /*sends=*/true, source, destination, call);
  if (meeting->has_ended()) return meeting;
  meeting->set_peer(destination);
  if (!send_capacity_) {
    meeting->complete_immediately();  // before its receive is posted
  } else {
    const auto ended = group.state->messages.add_send({source, destination}, meeting, *send_capacity_);
    if (!ended) return failed_meeting(group, std::move(call));
    for (const auto& own : *ended) calls_.end_meeting(*own, nullptr);
  }
  Mailbox::Posted send{.meeting = meeting,
                       .source = source,
                       .destination = destination,
                       .tag = tag,
                       .posted_at = clocks_.now(rank),
                       .call = std::move(call),
                       .participant = std::move(participant),
                       .deliver = nullptr};
  if (const auto receive = group.state->messages.take_receive_or_keep(send)) {
    end_sends(group, send, receive->posted_at);
    complete(*receive, send);
  }
  calls_.end(rank);
  return meeting;
}

std::shared_ptr<Meeting> Messages::receive(EngineGroup& group, int source, int destination, int tag, Call call,
                                           Participant participant, Deliver deliver) {
  const int rank = group.ranks[destination];
  auto meeting = begin(group, /*sends=*/false, source, destination, call);
  if (meeting->has_ended()) return meeting;
  meeting->set_peer(source);
  Mailbox::Posted receive{.meeting = meeting,
                          .source = source,
                          .destination = destination,
                          .tag = tag,
                          .posted_at = clocks_.now(rank),
                          .call = std::move(call),
                          .participant = std::move(participant),
                          .deliver = std::move(deliver)};
  std::optional<Mailbox::Posted> send;
  if (!group.state->messages.take_send_or_keep(receive, send)) return failed_meeting(group, std::move(receive.call));
  if (send) {
    end_sends(group, *send, receive.posted_at);
    complete(receive, *send);
  }
  calls_.end(rank);
  return meeting;
}

void Messages::end_sends(EngineGroup& group, const Mailbox::Posted& send, double received_at) {
  if (!send_capacity_) return;
  for (const auto& ended :
       group.state->messages.add_receive_of({send.source, send.destination}, send.meeting, *send_capacity_)) {
    transfers_.set_of_send(*ended, received_at);
    calls_.end_meeting(*ended, nullptr);
  }
}

// Only the receiver's meeting is completed here. An exception from a fault, the network model or `deliver`
// (sizes that differ) becomes the receiver's error; the sender has already returned.
void Messages::complete(const Mailbox::Posted& receive, const Mailbox::Posted& send) {
  auto& meeting = *receive.meeting;
  // For a receive from any source this is the answer that Work::sourceRank returns.
  meeting.set_peer(send.source);
  std::exception_ptr error;
  try {
    const auto faults =
        faults_.on_message(meeting.group(), send.source, receive.destination, meeting.sequence(), receive.call);
    if (faults.error) return calls_.end_meeting(meeting, nullptr, faults.error);
    if (faults.is_lost) return failures_.keep_open_until_failure(receive.meeting);
    transfers_.set_of_message(meeting, {.source = send.source,
                                        .destination = receive.destination,
                                        .sent_at = send.posted_at,
                                        .received_at = receive.posted_at,
                                        .late = faults.delays.empty() ? 0 : faults.delays[receive.destination]});
    receive.deliver(send.participant, receive.participant, meeting.sequence());
    transfers_.count(meeting);
  } catch (...) {
    error = std::current_exception();
  }
  calls_.end_meeting(meeting, error);
}

}  // namespace accel::sim
