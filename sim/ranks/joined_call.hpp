#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnose.hpp"
#include "sim/collectives/tensors/collectives.hpp"
#include "sim/engine/world.hpp"

/// What ranks bring to a collective besides their tensors, and how a wrong call ends the run.
/// Thread rule: the thread that completes the collective.
namespace accel::sim {

/// Identifies one collective or message of a run.
struct CallSlot {
  World& world;
  const EngineGroup& group;
  std::uint64_t sequence = 0;
};

/// One rank's part in a collective: the Participant of a Meeting.
struct JoinedCall {
  explicit JoinedCall(Call call) : call(std::move(call)) {}
  virtual ~JoinedCall() = default;
  /// Applies an injected corruption to the rank's tensors.
  virtual void corrupt(const Corruption& corruption) = 0;

  Call call;
};

/// For WorldOptions::corrupt.
void corrupt_call(const Participant& participant, const Corruption& corruption);

/// Says that the call of `ranks` (world ranks) is wrong.
Diagnosis diagnosis_of(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what);
/// Ends the run for this reason.
[[noreturn]] void fail_call(const CallSlot& slot, const Diagnosis& diagnosis);

/// The call of a member, with the shapes of its inputs.
using CallOfMember = std::function<Call(int member)>;
/// Ends the run if the ranks of an all-to-all disagree.
void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches, const CallOfMember& call_of);

}  // namespace accel::sim
