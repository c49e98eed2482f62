#include "sim/engine/meeting.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::sim {

const Call* Meeting::any_call() const {
  for (std::size_t member = 0; member < calls_.size(); ++member) {
    if (has_arrived_[member].load(std::memory_order_acquire)) return &*calls_[member];
  }
  return nullptr;
}

std::string Meeting::name() const {
  const auto* call = any_call();
  const auto title = call == nullptr ? std::string("collective") : std::string(name_of(call->op));
  return fmt::format("{} #{} of group {}", title, sequence_, group_->name);
}

std::exception_ptr Meeting::error(int rank) const {
  if (!has_ended()) return nullptr;
  return rank_errors_ ? rank_errors_(rank) : error_;
}

std::string describe(const Whereabouts& whereabouts) {
  const auto line = describe(whereabouts.where);
  const auto at = line.empty() ? "" : fmt::format(" ({})", line);
  const auto op = whereabouts.op.value();
  const auto& group = whereabouts.group->name;
  const int peer = whereabouts.peer;
  if (peer == -2) return fmt::format("{} #{} of group {}{}", name_of(op), whereabouts.sequence, group, at);
  const auto other = peer < 0 ? std::string("any rank") : fmt::format("rank {}", peer);
  const auto* direction = op == Collective::kSend ? "to" : "from";
  return fmt::format("{} #{} {} {} of group {}{}", name_of(op), whereabouts.sequence, direction, other, group, at);
}

int Group::group_rank_of(int rank) const {
  if (rank < static_cast<int>(ranks.size()) && ranks[rank] == rank) return rank;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace accel::sim
