#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/backend/tensor_call.hpp"
#include "sim/engine/world.hpp"

/// The tensors with which the ranks joined one collective, and the checks that run once all have joined: that no rank
/// has changed them since, that the splits of an all-to-all agree, that max and min have lost no NaN.
/// Thread rule: the thread that completes the collective.
namespace accel::sim {

/// Identifies one collective or message of a run.
struct CallSlot {
  World& world;
  const EngineGroup& group;
  std::uint64_t sequence = 0;
};

/// One rank's buffers in a collective, with a sample of its inputs that reveals later changes.
struct JoinedBuffers : Buffers {
  JoinedBuffers(Buffers buffers, Call call);

  Call call;
  std::uint64_t sample = 0;
};

/// Returns the members' JoinedBuffers by group rank. Ends the run if a rank has changed its inputs since it joined.
std::vector<Buffers*> unchanged_buffers(const CallSlot& slot, std::span<const Participant> participants);

/// Ends the run because the call of `ranks` (world ranks) is wrong.
[[noreturn]] void fail_call(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what);

/// Ends the run if the ranks of an all-to-all disagree.
void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches, AllBuffers ranks);

using TensorCompute = std::function<void(AllBuffers)>;
/// Returns the result of reducing the ranks' inputs number `item`.
using ResultOf = std::function<at::Tensor(AllBuffers, std::size_t item)>;
/// Wraps `compute` so that it warns of a lost NaN: Gloo's max and min drop NaN.
TensorCompute warn_on_lost_nan(const CallSlot& slot, Collective op, const NamedReduction& reduction, ResultOf result_of,
                               TensorCompute compute);

/// Applies an injected corruption to the tensors that a rank brought to a collective.
void corrupt_buffers(const Participant& participant, const Corruption& corruption);

}  // namespace accel::sim
