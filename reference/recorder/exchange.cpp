#include "reference/recorder/exchange.hpp"

namespace accel::recorder {
namespace {

// Of the parts that the call at this position has sent, or expects. Absent if it has none, also if it is overwritten
// meanwhile.
std::optional<Part> part_at(const MemberCall& own, Part (Exchange::*parts)[kMaxRanks], int member) {
  const auto& call = own.rank.calls[own.position % kCalls];
  if (call.position.load(std::memory_order_acquire) != own.position) return std::nullopt;
  const auto index = call.exchange;
  if (index == 0 || index > kExchanges) return std::nullopt;
  const auto& exchange = own.rank.exchanges[index - 1];
  if (exchange.position.load(std::memory_order_acquire) != own.position) return std::nullopt;
  const auto part = (exchange.*parts)[member];
  std::atomic_thread_fence(std::memory_order_acquire);
  if (exchange.position.load(std::memory_order_relaxed) != own.position) return std::nullopt;
  return part;
}

}  // namespace

std::optional<SplitMismatch> mismatch_of(const MemberCall& from, const MemberCall& to) {
  if (from.member < 0 || to.member < 0) return std::nullopt;
  const auto sent = part_at(from, &Exchange::sent, to.member);
  const auto expected = part_at(to, &Exchange::expected, from.member);
  if (!sent || !expected || sent->elements == expected->elements) return std::nullopt;
  if (sent->rows == expected->rows) return SplitMismatch{from.member, to.member, sent->elements, expected->elements};
  return SplitMismatch{from.member, to.member, sent->rows, expected->rows};
}

std::vector<SplitMismatch> split_mismatches(const JobRecord& record, const std::string& group, std::uint64_t sequence) {
  std::vector<MemberCall> calls;
  for (const int world_rank : record.local_ranks()) {
    const auto& rank = record.rank(world_rank);
    const int index = group_index(rank, group.c_str());
    if (index < 0) continue;
    const auto& slot = rank.groups[index].slots[sequence % kCalls];
    if (slot.number.load(std::memory_order_acquire) != sequence + 1) continue;
    const auto position = slot.position.load(std::memory_order_relaxed);
    if (rank.calls[position % kCalls].exchange == 0) continue;
    calls.push_back({rank, position, member_index(rank.groups[index], world_rank)});
  }
  std::vector<SplitMismatch> mismatches;
  for (const auto& from : calls) {
    for (const auto& to : calls) {
      if (const auto mismatch = mismatch_of(from, to)) mismatches.push_back(*mismatch);
    }
  }
  return mismatches;
}

}  // namespace accel::recorder
