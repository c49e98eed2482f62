// The slots of a meeting are written without locks; the atomics in `join` are what makes that safe.
#include "sim/engine/meeting.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::sim {

Meeting::Meeting(const EngineGroup& group, std::uint64_t sequence, bool keeps_time)
    : group_(&group),
      sequence_(sequence),
      calls_(group.ranks.size()),
      participants_(group.ranks.size()),
      has_arrived_(group.ranks.size()) {
  if (keeps_time) times.ready.resize(group.ranks.size());
}

Meeting::Meeting(const EngineGroup& group, Call call) : group_(&group), has_arrived_(1) {
  calls_.emplace_back(std::move(call));
  has_arrived_[0] = true;
}

Meeting::Meeting(const EngineGroup& group, Call call, std::uint64_t sequence) : Meeting(group, std::move(call)) {
  sequence_ = sequence;
  is_message_ = true;
}

// The release store publishes this member's slots to diagnoses; the acquire-release counter makes every
// member's slots visible to the last one. No lock: thousands of ranks join the same meeting at once.
bool Meeting::join(int member, Call call, Participant participant, std::optional<double> ready) {
  calls_[member] = std::move(call);
  participants_[member] = std::move(participant);
  if (ready) times.ready[member] = *ready;
  has_arrived_[member].store(true, std::memory_order_release);
  return num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(calls_.size());
}

// May run while members still arrive, so it reads only slots whose flag is set.
const Call* Meeting::any_call() const {
  for (std::size_t member = 0; member < calls_.size(); ++member) {
    if (has_arrived(member)) return &*calls_[member];
  }
  return nullptr;
}

// Used by diagnoses, also before any member has arrived: then the operation is unknown.
std::string Meeting::name() const {
  const auto* call = any_call();
  const auto title = call == nullptr ? std::string("collective") : std::string(name_of(call->op));
  return fmt::format("{} #{} of group {}", title, sequence_, group_->name);
}

int EngineGroup::group_rank_of(int rank) const {
  // Fast path for the world group; the lookup runs in every timed wait.
  if (rank < static_cast<int>(ranks.size()) && ranks[rank] == rank) return rank;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace accel::sim
