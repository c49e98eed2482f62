#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/backend/tensor_call.hpp"
#include "sim/engine/world.hpp"

/// The tensors with which the ranks have joined one collective, and what is checked of them when all have: that nobody
/// has changed them meanwhile, that the splits of an all-to-all agree, that max and min have lost no NaN.
///
/// Thread rule: the thread that completes the collective.
namespace accel::sim {

/// The place of one collective or message in a run.
struct CallSlot {
  World& world;
  const Group& group;
  std::uint64_t sequence = 0;
};

/// What a rank brings to a collective, with a sample of its inputs, from which later changes are found.
struct JoinedBuffers : Buffers {
  JoinedBuffers(Buffers buffers, Call call);

  Call call;
  std::uint64_t sample = 0;
};

/// The JoinedBuffers of the members, by group rank. Ends the run if a rank has changed its inputs since.
std::vector<Buffers*> unchanged_buffers(const CallSlot& slot, std::span<const Participant> participants);

/// Ends the run: the call of `ranks` (world ranks) is wrong.
[[noreturn]] void fail_call(const CallSlot& slot, const Call& call, std::vector<int> ranks, const std::string& what);

/// Ends the run if the ranks of an all-to-all disagree.
void check_splits(const CallSlot& slot, const std::vector<SplitMismatch>& mismatches, AllBuffers ranks);

using TensorCompute = std::function<void(AllBuffers)>;
/// What the ranks' inputs number `item` were reduced to.
using ResultOf = std::function<at::Tensor(AllBuffers, std::size_t item)>;
/// Gloo's max and min lose NaN: `compute`, which then warns of it.
TensorCompute warning_of_lost_nan(const CallSlot& slot, Collective op, const NamedReduction& reduction,
                                  ResultOf result_of, TensorCompute compute);

/// What an injected fault does to the tensors that a rank has brought to a collective.
void corrupt_buffers(const Participant& participant, const Corruption& corruption);

}  // namespace accel::sim
