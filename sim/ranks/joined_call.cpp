// Checks that need the calls of all ranks at once. They run on the thread that completes the collective, between the
// comparison of the calls (engine) and the computation (collectives/tensors), and end the run on a mistake.
#include "sim/ranks/joined_call.hpp"

#include <utility>

namespace accel::sim {
void corrupt_call(const Participant& participant, const Corruption& corruption) {
  static_cast<JoinedCall*>(participant.get())->corrupt(corruption);
}

Diagnosis diagnosis_of(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what) {
  return diagnose_call(call, slot.group.name, slot.sequence, std::move(ranks), what);
}

// Fails the run before it throws: the exception reaches only the thread that computes, the failure all ranks.
void fail_call(const CallSlot& slot, const Diagnosis& diagnosis) {
  auto error = std::make_exception_ptr(DiagnosedError(diagnosis));
  slot.world.fail(error);
  std::rethrow_exception(error);
}

void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches, const CallOfMember& call_of) {
  if (mismatches.empty()) return;
  OpenCall open{.group = slot.group.name, .members = slot.group.ranks, .sequence = slot.sequence};
  for (int member = 0; member < static_cast<int>(open.members.size()); ++member) open.calls.push_back(call_of(member));
  fail_call(slot, diagnose_splits(open, mismatches));
}

}  // namespace accel::sim
