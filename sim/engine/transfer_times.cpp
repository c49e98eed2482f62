// Times of collectives and messages on both clocks, see Note [Two clocks]. Runs on the completing thread before
// the members wake, so they find their finish times when they leave the wait.
#include "sim/engine/transfer_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace accel::sim {
namespace {

// Gloo gathers the entries of a sparse sum, and each rank has its own number of them. The largest is that of all.
Call gather_of_entries(const std::vector<std::optional<Call>>& calls) {
  auto gather = *calls.front();
  gather.op = Collective::kAllGather;
  for (const auto& call : calls) gather.bytes = std::max(gather.bytes, call->bytes);
  return gather;
}

}  // namespace

void TransferTimes::sleep(double seconds) const {
  if (seconds > 0 && !options_.is_virtual() && !is_serial_)
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Without a network model only the last arrival is known: the collective begins then, and the ranks wake when
// it ends. Delays are slept by the completing thread, as if the slowest link delayed all members.
void TransferTimes::set_of_collective(Meeting& meeting, const std::vector<double>& delays) const {
  auto& times = meeting.times;
  if (!options_.is_virtual()) {
    if (!delays.empty()) sleep(*std::max_element(delays.begin(), delays.end()));
    if (options_.keeps_time()) times.last_ready = clocks_.wall_now();
    return;
  }
  for (std::size_t member = 0; member < delays.size(); ++member) times.ready[member] += delays[member];
  const auto latest = std::max_element(times.ready.begin(), times.ready.end());
  times.last_ready = *latest;
  times.last_to_arrive = meeting.group().ranks[latest - times.ready.begin()];
  const auto& calls = meeting.calls();
  times.finish = calls.front()->sparse_dim < 0
                     ? options_.finish_times(meeting.group(), *calls.front(), times.ready)
                     : options_.finish_times(meeting.group(), gather_of_entries(calls), times.ready);
}

// The transfer starts when both ends are ready, because in Gloo the receiver notifies the sender.
void TransferTimes::set_of_message(Meeting& receive, const Message& message) const {
  const auto& group = receive.group();
  auto& times = receive.times;
  sleep(message.late);
  times.last_to_arrive = group.ranks[message.source];
  if (!options_.is_virtual()) {
    if (options_.keeps_time()) times.last_ready = clocks_.wall_now();
    return;
  }
  // The model orders transfers by group name, and gets a name for this pair: messages between two ranks wait
  // for each other, but not for the group's collectives.
  const EngineGroup pair{.name = fmt::format("{}: {} to {}", group.name, message.source, message.destination),
                         .ranks = {group.ranks[message.source], group.ranks[message.destination]}};
  const std::vector<double> ready{message.sent_at + message.late, message.received_at};  // it starts at the later one
  times.finish = {options_.finish_times(pair, *receive.calls().front(), ready).back()};
  times.last_ready = std::max(ready[0], ready[1]);
}

void TransferTimes::set_of_send(Meeting& send, double received_at) const {
  auto& times = send.times;
  times.last_to_arrive = send.group().ranks[send.peer()];
  if (options_.is_virtual()) times.finish = {received_at};
  if (options_.keeps_time()) times.last_ready = options_.is_virtual() ? received_at : clocks_.wall_now();
}

// One mutex for all ranks is enough: only the completing thread of each meeting takes it.
void TransferTimes::count(const Meeting& meeting) {
  if (!options_.keeps_time()) return;
  const auto& finish = meeting.times.finish;
  const double finished = options_.is_virtual() ? *std::max_element(finish.begin(), finish.end()) : clocks_.wall_now();
  const MutexLock lock(mutex_);
  auto& volume = volumes_[std::string(name_of(meeting.calls().front()->op))];
  ++volume.calls;
  for (const auto& call : meeting.calls()) volume.bytes += call->bytes;
  volume.seconds += finished - meeting.times.last_ready;
}

std::map<std::string, Volume> TransferTimes::volumes() {
  const MutexLock lock(mutex_);
  return volumes_;
}

}  // namespace accel::sim
