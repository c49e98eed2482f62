#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

/// The collectives of a process group and the two ends of a message, with what the other modules need to know of each.
///
///     name_of(Collective::kAllReduce);             // "all_reduce"
///     traits_of(Collective::kBroadcast).has_root;  // true
///
/// To add one, see "Where do I add" in reference/guide/architecture.md. Thread rule: constants. Includes no torch
/// header.
namespace accel {

enum class Collective : std::uint8_t {
  kAllReduce,
  kAllReduceCoalesced,
  kBroadcast,
  kReduce,
  kAllGather,
  kAllGatherIntoTensor,
  kAllGatherCoalesced,
  kAllGatherIntoTensorCoalesced,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterTensor,
  kAllToAll,
  kAllToAllSingle,
  kBarrier,
  kMonitoredBarrier,
  kSend,
  kRecv,
  kCount,  ///< the number of collectives, not a collective
};

/// Which rank sends to which, in Gloo (as called by PyTorch) and in NCCL; collective_plan.cpp has the messages.
enum class Algorithm : std::uint8_t {
  /// Gloo: ring downwards in Gloo's segments. NCCL: ring upwards, each chunk in one piece. Both use a binomial tree up
  /// and down for sizes up to `tree_all_reduce_bytes_max` of the network file.
  kAllReduce,
  kBroadcast,  ///< Gloo: binomial tree. NCCL: chain of slices of 512 KiB.
  kReduce,     ///< Gloo: the ring's first half, then the chunks to the root. NCCL: chain.
  kAllGather,  ///< Ring upwards. Gloo: each part in two pieces.
  kGather,     ///< All to the root at the same time.
  kScatter,    ///< From the root to all at the same time.
  /// Gloo: an all-reduce per tensor of the list. NCCL: the first half of the ring.
  kReduceScatterList,
  kReduceScatter,     ///< Gloo: an all-reduce of everything. NCCL: the first half of the ring.
  kAllToAll,          ///< All to all at the same time.
  kBarrier,           ///< Gloo: dissemination. NCCL: an all-reduce of one number.
  kMonitoredBarrier,  ///< To rank 0 and back.
  kMessage,           ///< From the sender to the receiver.
};

struct CollectiveTraits {
  bool is_in_place = false;  ///< the result overwrites the inputs, whose elements correspond in the order of memory
  bool has_root = false;
  bool reduces = false;          ///< has a reduce operation
  bool root_only_reads = false;  ///< an in-place collective that leaves the root's tensor unchanged
  bool sums_gradients = false;   ///< used by DDP for its buckets or by sharded models for their units
};

struct CollectiveInfo {
  Collective collective{};
  std::string_view name;  ///< in logs, diagnoses, reports and messages
  Algorithm algorithm{};
  CollectiveTraits traits = {};
};

/// In the order of Collective.
inline constexpr CollectiveInfo kCollectives[] = {
    {Collective::kAllReduce,
     "all_reduce",
     Algorithm::kAllReduce,
     {.is_in_place = true, .reduces = true, .sums_gradients = true}},
    {Collective::kAllReduceCoalesced,
     "all_reduce_coalesced",
     Algorithm::kAllReduce,
     {.is_in_place = true, .reduces = true}},
    {Collective::kBroadcast,
     "broadcast",
     Algorithm::kBroadcast,
     {.is_in_place = true, .has_root = true, .root_only_reads = true}},
    {Collective::kReduce, "reduce", Algorithm::kReduce, {.is_in_place = true, .has_root = true, .reduces = true}},
    {Collective::kAllGather, "all_gather", Algorithm::kAllGather},
    {Collective::kAllGatherIntoTensor, "all_gather_into_tensor", Algorithm::kAllGather},
    {Collective::kAllGatherCoalesced, "all_gather_coalesced", Algorithm::kAllGather},
    {Collective::kAllGatherIntoTensorCoalesced, "all_gather_into_tensor_coalesced", Algorithm::kAllGather},
    {Collective::kGather, "gather", Algorithm::kGather, {.has_root = true}},
    {Collective::kScatter, "scatter", Algorithm::kScatter, {.has_root = true}},
    {Collective::kReduceScatter,
     "reduce_scatter",
     Algorithm::kReduceScatterList,
     {.reduces = true, .sums_gradients = true}},
    {Collective::kReduceScatterTensor,
     "reduce_scatter_tensor",
     Algorithm::kReduceScatter,
     {.reduces = true, .sums_gradients = true}},
    {Collective::kAllToAll, "all_to_all", Algorithm::kAllToAll},
    {Collective::kAllToAllSingle, "all_to_all_single", Algorithm::kAllToAll},
    {Collective::kBarrier, "barrier", Algorithm::kBarrier},
    {Collective::kMonitoredBarrier, "monitored_barrier", Algorithm::kMonitoredBarrier},
    {Collective::kSend, "send", Algorithm::kMessage},
    {Collective::kRecv, "recv", Algorithm::kMessage},
};

constexpr const CollectiveInfo& info_of(Collective collective) {
  return kCollectives[static_cast<std::size_t>(collective)];
}
constexpr std::string_view name_of(Collective collective) { return info_of(collective).name; }
constexpr const CollectiveTraits& traits_of(Collective collective) { return info_of(collective).traits; }

/// Whether it is one end of a message between two ranks.
constexpr bool is_message(Collective collective) { return info_of(collective).algorithm == Algorithm::kMessage; }

/// Whether a rank's inputs are changed; `root` and `rank` are group ranks.
constexpr bool writes_inputs(Collective collective, int root, int rank) {
  const auto& traits = traits_of(collective);
  return traits.is_in_place && !(traits.root_only_reads && root == rank);
}

static_assert(std::size(kCollectives) == static_cast<std::size_t>(Collective::kCount) &&
                  std::all_of(std::begin(kCollectives), std::end(kCollectives),
                              [](const CollectiveInfo& info) { return &info == &info_of(info.collective); }),
              "every Collective has its row in kCollectives, in the order of the enumeration");

}  // namespace accel
