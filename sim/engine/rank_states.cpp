// A rank writes its own state; diagnoses on other threads read it. One mutex per rank keeps ranks from contending.
#include "sim/engine/rank_states.hpp"

#include <utility>

#include "sim/engine/meeting.hpp"

namespace accel::sim {

std::optional<CallPlace> place_of(const LastCall& call) {
  if (!call.op) return std::nullopt;
  return CallPlace{*call.op, call.group->name, call.sequence, call.peer, call.where};
}

void RankStates::set_last_call(int rank, const LastCall& call) {
  ranks_[rank].own_last_call = call;
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].last_call = call;
  if (ranks_[rank].kept_calls) ranks_[rank].kept_calls->push_back(call);
}

std::vector<LastCall> RankStates::take_calls(int rank) {
  const MutexLock lock(ranks_[rank].mutex);
  return std::exchange(ranks_[rank].kept_calls, std::vector<LastCall>()).value_or(std::vector<LastCall>());
}

// Assigns in place: a rank that waits again and again allocates nothing.
void RankStates::set_waits(int rank, std::span<const RankWait> waits) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].waits.assign(waits.begin(), waits.end());
}

void RankStates::set_left(int rank) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].has_left = true;
}

// An injected hang blocks on a meeting without a group, which distinguishes it from a rank that waits for others.
RankState RankStates::state(int rank) {
  auto& own = ranks_[rank];
  const MutexLock lock(own.mutex);
  RankState state{.last_call = place_of(own.last_call)};
  if (own.has_left) state.activity = Activity::kHasLeft;
  if (!own.waits.empty()) state.activity = Activity::kWaits;
  for (const auto& wait : own.waits) {
    if (!wait.meeting->has_group())
      state.activity = Activity::kHangs;
    else if (auto place = place_of(wait.call))
      state.waits.push_back(*std::move(place));
  }
  return state;
}

// Locks one rank at a time, so the result is a snapshot only if no rank runs; that holds when a hang is
// diagnosed. The time-out report may be off by a rank that moves meanwhile.
std::vector<RankWait> RankStates::waits() {
  std::vector<RankWait> waits;
  for (auto& rank : ranks_) {
    const MutexLock lock(rank.mutex);
    waits.insert(waits.end(), rank.waits.begin(), rank.waits.end());
  }
  return waits;
}

}  // namespace accel::sim
