// Messages between two ranks: a send ends at once, a receive when its message is there.
#include <algorithm>
#include <thread>

#include "sim/engine/world.hpp"

namespace accel::sim {

std::shared_ptr<Meeting> World::send(Group& group, int source, int destination, int tag, Call call, Participant participant) {
  const int rank = group.ranks[source];
  if (baton_) baton_->yield(rank);
  end_compute(rank);
  throw_if_failed();
  const auto sequence = [&] {
    const MutexLock lock(group.mutex);
    return group.num_sends[{source, destination}]++;
  }();
  if (options_.faults) options_.faults->before_message(*this, rank, group, sequence, call);
  set_whereabouts(rank, {.op = "send", .group = &group, .sequence = static_cast<std::int64_t>(sequence), .peer = group.ranks[destination], .where = call.where});
  log_event("send", rank, "send", &group);
  if (group.is_disconnected) return failed_meeting(group, std::move(call));
  auto meeting = std::make_shared<Meeting>();
  meeting->group_ = &group;
  meeting->sequence_ = sequence;
  meeting->is_message_ = true;
  meeting->calls_ = {call};
  meeting->has_arrived_ = std::vector<std::atomic<bool>>(1);
  meeting->has_arrived_[0] = true;
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

std::shared_ptr<Meeting> World::receive(Group& group, int source, int destination, int tag, Call call, Participant participant, Deliver deliver) {
  const int rank = group.ranks[destination];
  if (baton_) baton_->yield(rank);
  end_compute(rank);
  throw_if_failed();
  const auto sequence = [&] {
    const MutexLock lock(group.mutex);
    return group.num_receives[{source, destination}]++;
  }();
  if (options_.faults) options_.faults->before_message(*this, rank, group, sequence, call);
  set_whereabouts(rank, {.op = "recv", .group = &group, .sequence = static_cast<std::int64_t>(sequence), .peer = source < 0 ? -1 : group.ranks[source], .where = call.where});
  log_event("receive", rank, "recv", &group);
  if (group.is_disconnected) return failed_meeting(group, std::move(call));
  auto meeting = std::make_shared<Meeting>();
  meeting->group_ = &group;
  meeting->sequence_ = sequence;
  meeting->is_message_ = true;
  meeting->source_ = source;
  meeting->calls_ = {call};
  meeting->has_arrived_ = std::vector<std::atomic<bool>>(1);
  meeting->has_arrived_[0] = true;
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
  if (sent) deliver_message(receive, sent->source, sent->participant, sent->meeting->ready_.empty() ? 0 : sent->meeting->ready_.front());
  begin_compute(rank);
  return meeting;
}

void World::deliver_message(const Group::Posted& receive, int source, const Participant& sent, double sent_at) {
  auto& meeting = *receive.meeting;
  const auto& group = *meeting.group_;
  meeting.source_ = source;
  std::exception_ptr error;
  try {
    MeetingFaults faults;
    if (options_.faults) faults = options_.faults->on_message(*this, group, source, receive.destination, meeting.sequence_, receive.call);
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
      const std::vector<double> ready{meeting.last_ready_, meeting.last_ready_};
      meeting.finish_ = {options_.finish_times(pair, receive.call, ready).back()};
    }
    receive.deliver(sent, receive.participant);
    if (keeps_time()) count_volume(receive.call, receive.call.bytes, meeting);
  } catch (...) {
    error = std::current_exception();
  }
  end(meeting, error);
}

}  // namespace accel::sim
