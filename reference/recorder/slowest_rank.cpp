#include "reference/recorder/slowest_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace accel::recorder {
namespace {

// When a rank has begun its collective of this number; nothing if the record lacks it.
std::optional<std::int64_t> begin_of(const RankRecord& rank, const char* group, std::uint64_t sequence) {
  const int index = group_index(rank, group);
  if (index < 0) return std::nullopt;
  const auto& slot = rank.groups[index].slots[sequence % kCalls];
  if (slot.number.load(std::memory_order_acquire) != sequence + 1) return std::nullopt;
  const auto position = slot.position.load(std::memory_order_relaxed);
  const auto& call = rank.calls[position % kCalls];
  const auto begin = call.begin_ns.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.number.load(std::memory_order_relaxed) != sequence + 1) return std::nullopt;
  if (call.position.load(std::memory_order_relaxed) != position) return std::nullopt;
  return begin;
}

struct Arrivals {
  int last = 0;  // world rank
  std::int64_t late_ns = 0;
};

std::optional<Arrivals> arrivals_at(const JobRecord& record, const RecordedGroup& group, std::uint64_t sequence) {
  std::optional<std::int64_t> first, last;
  Arrivals arrivals;
  for (std::int32_t member = 0; member < group.size; ++member) {
    const auto begin = begin_of(record.rank(group.members[member]), group.name, sequence);
    if (!begin) return std::nullopt;
    first = std::min(first.value_or(*begin), *begin);
    if (last && *begin <= *last) continue;
    last = *begin;
    arrivals.last = group.members[member];
  }
  arrivals.late_ns = *last - *first;
  return arrivals;
}

SlowestRank slowest_of(const JobRecord& record, const RecordedGroup& group) {
  std::map<int, std::vector<std::int64_t>> lateness;  // by the rank that came last
  SlowestRank slowest{.group = group.name};
  const auto count = group.num_calls.load(std::memory_order_acquire);
  for (auto sequence = count - std::min<std::uint64_t>(count, kCalls); sequence < count; ++sequence) {
    const auto arrivals = arrivals_at(record, group, sequence);
    if (!arrivals) continue;
    ++slowest.num_collectives;
    lateness[arrivals->last].push_back(arrivals->late_ns);
  }
  for (auto& [rank, times] : lateness) {
    if (static_cast<int>(times.size()) <= slowest.num_last) continue;
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    slowest.rank = rank;
    slowest.num_last = static_cast<int>(times.size());
    slowest.late_ns = times[times.size() / 2];
  }
  return slowest;
}

}  // namespace

std::optional<SlowestRank> slowest_rank(const JobRecord& record) {
  std::optional<SlowestRank> found;
  for (const int world_rank : record.local_ranks()) {
    const auto& rank = record.rank(world_rank);
    const auto num_groups = std::min<std::uint32_t>(rank.num_groups.load(std::memory_order_acquire), kGroups);
    for (std::uint32_t index = 0; index < num_groups; ++index) {
      const auto& group = rank.groups[index];
      const bool is_here =
          std::all_of(group.members, group.members + group.size, [&](int member) { return record.is_local(member); });
      // Each group is read once, from its first member.
      if (!is_here || group.size < 2 || group.members[0] != world_rank) continue;
      auto slowest = slowest_of(record, group);
      if (slowest.num_collectives > (found ? found->num_collectives : 0)) found = std::move(slowest);
    }
  }
  return found;
}

std::string describe(const SlowestRank& slowest) {
  return fmt::format(
      "slowest: rank {} came last to {} of the last {} collectives of group {}, {:.3g} ms after the first rank",
      slowest.rank, slowest.num_last, slowest.num_collectives, slowest.group,
      static_cast<double>(slowest.late_ns) * 1e-6);
}

}  // namespace accel::recorder
