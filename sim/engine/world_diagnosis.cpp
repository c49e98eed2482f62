// Why nobody can go on: found at the moment when the last running rank blocks or leaves, or when a deadline passes.
#include <algorithm>

#include "sim/engine/world.hpp"

namespace accel::sim {

World::Ended World::fail_if_quiescent() {
  if (num_blocked_ == 0 || num_blocked_ + num_left_ < num_ranks()) return {};
  return fail(std::make_exception_ptr(DiagnosedError(diagnose_hang())));
}

std::string World::whereabouts(int rank) {
  if (blocked_[rank] != nullptr) return fmt::format("waits in {}", last_call_[rank]);
  const auto& last = last_call_[rank];
  const auto after = last.empty() ? std::string("before any collective") : fmt::format("after {}", last);
  return left_[rank] ? fmt::format("has ended its program, {}", after) : fmt::format("is running, {}", after);
}

void World::describe_absence(const Meeting& meeting, Diagnosis& diagnosis) {
  const auto& members = meeting.group_->ranks;
  std::vector<int> arrived;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const bool here = !meeting.is_message_ && meeting.calls_[member].has_value();
    (here ? arrived : diagnosis.ranks).push_back(members[member]);
  }
  const auto call = std::find_if(meeting.calls_.begin(), meeting.calls_.end(), [](auto& c) { return c.has_value(); });
  diagnosis.op = std::string((*call)->op);
  diagnosis.group = meeting.group_->name;
  diagnosis.sequence = meeting.sequence_;
  if (meeting.is_message_) {
    diagnosis.ranks = meeting.waiters_;
    diagnosis.text += fmt::format("\n  {} waits in {}, and nobody has sent", describe_ranks(meeting.waiters_), last_call_[meeting.waiters_.front()]);
    return;
  }
  diagnosis.text += fmt::format("\n  {}, {}: {} of {} ranks arrived ({})", meeting.name(), describe(**call), arrived.size(),
                                members.size(), describe_ranks(arrived));
  std::vector<std::pair<std::string, std::vector<int>>> places;
  for (const int rank : diagnosis.ranks) {
    auto place = whereabouts(rank);
    auto same = std::find_if(places.begin(), places.end(), [&](auto& other) { return other.first == place; });
    if (same == places.end()) same = places.insert(places.end(), {std::move(place), {}});
    same->second.push_back(rank);
  }
  for (const auto& [place, ranks] : places) diagnosis.text += fmt::format("\n  missing: {} {}", describe_ranks(ranks), place);
}

Diagnosis World::diagnose_hang() {
  // The culprits are those missing from the earliest meeting; with several groups, from the one most ranks wait for.
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kHang, .text = "hang: every rank is blocked or has ended, none can go on"};
  std::vector<const Meeting*> meetings;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (blocked_[rank] == nullptr) continue;
    const auto& meeting = *blocked_[rank];
    diagnosis.waiting.push_back({rank, last_call_[rank], meeting.group_->name, meeting.sequence_});
    if (std::find(meetings.begin(), meetings.end(), &meeting) == meetings.end()) meetings.push_back(&meeting);
  }
  std::stable_sort(meetings.begin(), meetings.end(), [](auto* a, auto* b) { return a->waiters_.size() > b->waiters_.size(); });
  describe_absence(*meetings.front(), diagnosis);
  for (std::size_t other = 1; other < meetings.size(); ++other) {
    Diagnosis further;
    describe_absence(*meetings[other], further);
    diagnosis.text += further.text;
  }
  return diagnosis;
}

Diagnosis World::diagnose_timeout(const Meeting& meeting) {
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kTimeout};
  diagnosis.text = fmt::format("timed out after {} ms", options_.timeout.count());
  for (const int rank : meeting.waiters_) {
    diagnosis.waiting.push_back({rank, last_call_[rank], meeting.group_->name, meeting.sequence_});
  }
  describe_absence(meeting, diagnosis);
  return diagnosis;
}

void World::check_deadlines() {
  const auto now = std::chrono::steady_clock::now();
  Ended ended;
  std::exception_ptr failure;
  {
    const MutexLock lock(mutex_);
    if (failure_) return;
    const Meeting* late = nullptr;
    for (const auto* meeting : blocked_) {
      if (meeting != nullptr && meeting->deadline_ < now) late = meeting;
    }
    // Nobody waits in the engine, but somebody may wait for a future of it.
    for (const auto& [name, group] : groups_) {
      for (const auto& [sequence, meeting] : group->open) {
        if (late == nullptr && meeting->deadline_ < now) late = meeting.get();
      }
    }
    if (late == nullptr) return;
    ended = fail(std::make_exception_ptr(DiagnosedError(diagnose_timeout(*late))));
    failure = failure_;
  }
  announce(ended, failure);
}

}  // namespace accel::sim
