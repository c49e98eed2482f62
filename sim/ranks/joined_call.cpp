// Checks that need the calls of all ranks at once. They run on the thread that completes the collective, between the
// comparison of the calls (engine) and the computation (collectives/tensors), and end the run on a mistake.
#include "sim/ranks/joined_call.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

// Returns the members that occur in the most mismatches. A member with wrong splits mismatches with several
// peers and stands out; with a single mismatch both sides are named.
std::vector<int> most_frequent_members(const std::vector<SplitMismatch>& mismatches, std::size_t num_members) {
  std::vector<int> counts(num_members);
  for (const auto& one : mismatches) {
    ++counts[one.from];
    if (one.to != one.from) ++counts[one.to];
  }
  std::vector<int> members;
  const int most = *std::max_element(counts.begin(), counts.end());
  for (std::size_t member = 0; member < num_members; ++member) {
    if (counts[member] == most) members.push_back(static_cast<int>(member));
  }
  return members;
}

}  // namespace

void corrupt_call(const Participant& participant, const Corruption& corruption) {
  static_cast<JoinedCall*>(participant.get())->corrupt(corruption);
}

Diagnosis diagnosis_of(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what) {
  const auto where = describe(call.where);
  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync, .ranks = std::move(ranks)};
  name_call(diagnosis, call, slot.group.name, slot.sequence);
  diagnosis.text = fmt::format("{} #{} of group {}{}: {}", name_of(call.op), slot.sequence, slot.group.name,
                               where.empty() ? "" : " at " + where, what);
  return diagnosis;
}

// Fails the run before it throws: the exception reaches only the thread that computes, the failure all ranks.
void fail_call(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what) {
  auto error = std::make_exception_ptr(DiagnosedError(diagnosis_of(slot, call, std::move(ranks), what)));
  slot.world.fail(error);
  std::rethrow_exception(error);
}

void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches,
                  const std::vector<const Call*>& calls,
                  const std::function<std::vector<std::vector<std::int64_t>>(int member)>& shapes_of) {
  if (mismatches.empty()) return;
  const auto& members = slot.group.ranks;
  const auto wrong = most_frequent_members(mismatches, calls.size());
  std::vector<int> culprits;
  for (const int member : wrong) culprits.push_back(members[member]);
  std::sort(culprits.begin(), culprits.end());
  // Lists every mismatch: the pattern usually shows which rank's splits are wrong.
  std::string what = "input and output splits differ; expected equal splits on both sides:";
  for (const auto& [from, to, sent, expected] : mismatches) {
    what +=
        fmt::format("\n  rank {} sends {} to rank {}, which expects {}", members[from], sent, members[to], expected);
  }
  auto call = *calls[wrong.front()];
  for (auto& shape : shapes_of(wrong.front())) call.shapes.push_back(std::move(shape));
  fail_call(slot, call, culprits, what);
}

}  // namespace accel::sim
