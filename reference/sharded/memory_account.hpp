#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

namespace accel::sharded {

/// What the memory of a rank's training state is used for.
enum class MemoryKind { kParameters, kGradients, kOptimizer, kActivations, kGathered, kBuckets };
inline constexpr std::array<const char*, 6> kMemoryKindNames = {"parameters",  "gradients", "optimizer",
                                                                "activations", "gathered",  "buckets"};

/// Bytes that one rank uses, by kind: current and peak.
///
/// parameters: the shards that optimizers step, or full parameters where these are not sharded
/// gathered: full parameters while a unit computes
/// gradients: full ones and shards
/// buckets: gradients in the form in which they are sent
/// activations: what was allocated while an ActivationMeter lived and belongs to no other kind
///
/// Thread rule: the rank's thread.
class MemoryAccount {
 public:
  void add(MemoryKind kind, std::int64_t bytes) { set(kind, now(kind) + bytes); }
  void set(MemoryKind kind, std::int64_t bytes) {
    auto& entry = entries_[static_cast<std::size_t>(kind)];
    entry.now = bytes;
    entry.most = std::max(entry.most, bytes);
  }
  [[nodiscard]] std::int64_t now(MemoryKind kind) const { return entries_[static_cast<std::size_t>(kind)].now; }
  [[nodiscard]] std::int64_t most(MemoryKind kind) const { return entries_[static_cast<std::size_t>(kind)].most; }
  /// The current sum over all kinds.
  [[nodiscard]] std::int64_t total() const {
    return std::accumulate(entries_.begin(), entries_.end(), std::int64_t{0},
                           [](std::int64_t sum, const Entry& entry) { return sum + entry.now; });
  }

 private:
  struct Entry {
    std::int64_t now = 0, most = 0;
  };
  std::array<Entry, kMemoryKindNames.size()> entries_ = {};
};

}  // namespace accel::sharded
