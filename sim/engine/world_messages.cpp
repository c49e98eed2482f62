// Messages between two ranks: a send ends at once, a receive when its message is there.
#include <algorithm>
#include <thread>

#include "sim/engine/world.hpp"

namespace accel::sim {

// What a send and a receive begin with. Ended if the group is disconnected.
std::shared_ptr<Meeting> World::begin_message(Group& group, bool sends, int source, int destination, const Call& call) {
  const int rank = group.ranks[sends ? source : destination], peer = sends ? destination : source;
  if (baton_) baton_->yield(rank);
  end_compute(rank);
  throw_if_failed();
  const auto sequence = [&] {
    const MutexLock lock(group.mutex);
    return (sends ? group.num_sends : group.num_receives)[{source, destination}]++;
  }();
  if (options_.faults) options_.faults->before_message(*this, rank, group, sequence, call);
  const auto op = sends ? Collective::kSend : Collective::kRecv;
  set_whereabouts(rank, {.op = op,
                         .group = &group,
                         .sequence = static_cast<std::int64_t>(sequence),
                         .peer = peer < 0 ? -1 : group.ranks[peer],
                         .where = call.where});
  log_event(sends ? "send" : "receive", rank, op, &group);
  if (group.is_disconnected) return failed_meeting(group, call);
  auto meeting = lone_meeting(group, call);
  meeting->sequence_ = sequence;
  meeting->is_message_ = true;
  return meeting;
}

std::shared_ptr<Meeting> World::send(Group& group, int source, int destination, int tag, Call call,
                                     Participant participant) {
  const int rank = group.ranks[source];
  auto meeting = begin_message(group, /*sends=*/true, source, destination, call);
  if (meeting->has_ended()) return meeting;
  meeting->is_claimed_ = true;
  meeting->state_ = Meeting::kEnded;
  if (is_virtual()) meeting->ready_ = {now(rank)};
  std::optional<Group::Posted> receive;
  {
    const MutexLock lock(group.mutex);
    const auto match = std::find_if(group.receives.begin(), group.receives.end(), [&](const auto& posted) {
      return posted.destination == destination && posted.tag == tag && (posted.source == source || posted.source < 0);
    });
    if (match == group.receives.end()) {
      group.sends.push_back({meeting, source, destination, tag, std::move(call), std::move(participant), nullptr});
    } else {
      receive = std::move(*match);
      group.receives.erase(match);
    }
  }
  if (receive) deliver_message(*receive, source, participant, now(rank));
  begin_compute(rank);
  return meeting;
}

std::shared_ptr<Meeting> World::receive(Group& group, int source, int destination, int tag, Call call,
                                        Participant participant, Deliver deliver) {
  auto meeting = begin_message(group, /*sends=*/false, source, destination, call);
  if (meeting->has_ended()) return meeting;
  meeting->source_ = source;
  if (is_virtual()) meeting->ready_ = {now(group.ranks[destination])};
  Group::Posted receive{meeting, source, destination, tag, std::move(call), std::move(participant), std::move(deliver)};
  std::optional<Group::Posted> sent;
  const auto take = [&] {  // whether the group is still there
    const MutexLock lock(group.mutex);
    throw_if_failed();
    if (group.is_disconnected) return false;
    auto match = group.sends.end();
    for (auto posted = group.sends.begin(); posted != group.sends.end(); ++posted) {
      if (posted->destination != destination || posted->tag != tag) continue;
      if (source >= 0 && posted->source != source) continue;
      if (match == group.sends.end() || posted->source < match->source) match = posted;
    }
    if (match == group.sends.end()) {
      group.receives.push_back(std::move(receive));
    } else {
      sent = std::move(*match);
      group.sends.erase(match);
    }
    return true;
  };
  if (!take()) return failed_meeting(group, std::move(receive.call));
  if (sent)
    deliver_message(receive, sent->source, sent->participant,
                    sent->meeting->ready_.empty() ? 0 : sent->meeting->ready_.front());
  begin_compute(group.ranks[destination]);
  return meeting;
}

void World::deliver_message(const Group::Posted& receive, int source, const Participant& sent, double sent_at) {
  auto& meeting = *receive.meeting;
  const auto& group = *meeting.group_;
  meeting.source_ = source;
  std::exception_ptr error;
  try {
    MeetingFaults faults;
    if (options_.faults)
      faults = options_.faults->on_message(*this, group, source, receive.destination, meeting.sequence_, receive.call);
    if (faults.error) return end(meeting, nullptr, faults.error);
    if (faults.is_lost) {
      const MutexLock lock(mutex_);
      hangs_.push_back(receive.meeting);  // it ends when no rank can go on
      return;
    }
    const double late = faults.delays.empty() ? 0 : faults.delays[receive.destination];
    if (late > 0 && !is_virtual() && !baton_) std::this_thread::sleep_for(std::chrono::duration<double>(late));
    meeting.last_to_arrive_ = group.ranks[source];
    meeting.last_ready_ = is_virtual() ? sent_at + late : keeps_time() ? wall_now() : 0;
    if (is_virtual()) {
      Group pair;  // messages between two ranks take turns among themselves, and with nothing else of the group
      pair.name = fmt::format("{}: {} to {}", group.name, source, receive.destination);
      pair.ranks = {group.ranks[source], group.ranks[receive.destination]};
      const std::vector<double> ready{meeting.last_ready_, meeting.ready_.front()};  // it starts when both are there
      meeting.finish_ = {options_.finish_times(pair, receive.call, ready).back()};
      meeting.last_ready_ = std::max(ready[0], ready[1]);
    }
    receive.deliver(sent, receive.participant, meeting.sequence_);
    if (keeps_time()) count_volume(meeting);
  } catch (...) {
    error = std::current_exception();
  }
  end(meeting, error);
}

}  // namespace accel::sim
