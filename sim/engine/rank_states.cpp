// A rank writes its own state; diagnoses on other threads read it. One mutex per rank keeps ranks from contending.
#include "sim/engine/rank_states.hpp"

#include <fmt/format.h>

#include "sim/engine/meeting.hpp"

namespace accel::sim {

// Collectives are counted per group, messages per pair of ranks; the text says which, so that "#3" is not ambiguous.
std::string describe(const LastCall& call) {
  const auto line = describe(call.where);
  const auto at = line.empty() ? "" : fmt::format(" ({})", line);
  const auto op = call.op.value();
  const auto& group = call.group->name;
  if (call.peer == kNoPeer) return fmt::format("{} #{} of group {}{}", name_of(op), call.sequence, group, at);
  const auto other = call.peer == kAnyPeer ? std::string("any rank") : fmt::format("rank {}", call.peer);
  const auto* direction = op == Collective::kSend ? "to" : "from";
  return fmt::format("{} #{} {} {} of group {}{}", name_of(op), call.sequence, direction, other, group, at);
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

void RankStates::block(int rank, Meeting& meeting) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].blocked_on = &meeting;
}

void RankStates::unblock(int rank) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].blocked_on = nullptr;
}

void RankStates::set_left(int rank) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].has_left = true;
}

// An injected hang blocks on a meeting without a group, which distinguishes it from a rank that waits for others.
RankStates::State RankStates::state(int rank) {
  auto& own = ranks_[rank];
  const MutexLock lock(own.mutex);
  if (own.blocked_on != nullptr)
    return {own.blocked_on->has_group() ? Activity::kWaits : Activity::kHangs, own.last_call};
  return {own.has_left ? Activity::kHasLeft : Activity::kRuns, own.last_call};
}

// Locks one rank at a time, so the result is a snapshot only if no rank runs; that holds when a hang is
// diagnosed. The time-out report may be off by a rank that moves meanwhile.
std::vector<std::pair<int, Meeting*>> RankStates::blocked() {
  std::vector<std::pair<int, Meeting*>> blocked;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const MutexLock lock(ranks_[rank].mutex);
    if (ranks_[rank].blocked_on != nullptr) blocked.emplace_back(rank, ranks_[rank].blocked_on);
  }
  return blocked;
}

}  // namespace accel::sim
