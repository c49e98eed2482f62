#include "reference/recorder/message.hpp"

#include <torch/headeronly/core/ScalarType.h>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/recorder/call_facts.hpp"
#include "reference/recorder/job_reader.hpp"

namespace accel::recorder {
namespace {

constexpr std::uint64_t kLookedAt = 32;  // of the last calls of the other rank

bool is_in_order(const RecordedGroup& group, int peer) {
  return !group.uses_tags[peer].load(std::memory_order_acquire) &&
         group.received_from_any.load(std::memory_order_acquire) == 0;
}

// The position of one end of a message; 0: not found.
std::uint64_t position_of(const RankRecord& rank, Collective op, int group, int peer, std::uint64_t sequence) {
  const auto last = rank.num_calls.load(std::memory_order_acquire);
  for (auto position = last; position > 0 && position + kLookedAt > last; --position) {
    const auto& call = rank.calls[position % kCalls];
    if (call.position.load(std::memory_order_acquire) != position) continue;
    if (call.facts.op == op && call.group == group && call.peer == peer && call.sequence == sequence) return position;
  }
  return 0;
}

}  // namespace

std::optional<Diagnosis> message_difference(const JobRecord& record, int rank, std::uint64_t position) {
  const auto& own = record.rank(rank);
  const auto& call = own.calls[position % kCalls];
  const auto& group = own.groups[call.group];
  if (call.peer < 0 || !is_in_order(group, call.peer)) return std::nullopt;
  const int peer = group.members[call.peer];
  if (!record.is_local(peer)) return std::nullopt;
  const auto& other = record.rank(peer);
  const int place = group_index(other, group.name), own_member = member_index(group, rank);
  if (place < 0 || !is_in_order(other.groups[place], own_member)) return std::nullopt;
  const bool sends = call.facts.op == Collective::kSend;
  const auto found =
      position_of(other, sends ? Collective::kRecv : Collective::kSend, place, own_member, call.sequence);
  // The other rank may have begun to use tags meanwhile: it says so before its call can be found.
  if (found == 0 || !is_in_order(other.groups[place], own_member)) return std::nullopt;
  const auto own_call = call_at(own, position), other_call = call_at(other, found);
  const auto& facts = other.calls[found % kCalls].facts;
  if (!own_call || !other_call || own_call->shapes.empty() || other_call->shapes.empty()) return std::nullopt;
  const auto end_of = [](const Call& call, const CallFacts& facts) {
    return MessageEnd{elements_of(call.shapes.front()), c10::toString(static_cast<c10::ScalarType>(facts.dtype))};
  };
  const auto own_end = end_of(*own_call, call.facts), other_end = end_of(*other_call, facts);
  if (own_end.elements == other_end.elements && own_end.dtype == other_end.dtype) return std::nullopt;
  return sends ? diagnose_message(*other_call, group.name, call.sequence, peer, own_end, other_end)
               : diagnose_message(*own_call, group.name, call.sequence, rank, other_end, own_end);
}

}  // namespace accel::recorder
