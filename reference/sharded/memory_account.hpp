#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

namespace accel::sharded {

/// What a rank's training state holds memory for.
enum class MemoryKind { kParameters, kGradients, kOptimizer, kActivations, kGathered, kBuckets };
inline constexpr std::array<const char*, 6> kMemoryKindNames = {"parameters",  "gradients", "optimizer",
                                                                "activations", "gathered",  "buckets"};

/// Bytes of one rank by kind, now and at most. Parameters are the shards that optimizers step, or whole where they are
/// not sharded; gathered are whole parameters while a unit computes; gradients are whole ones and shards; buckets are
/// what is sent of gradients; activations are what was allocated while an ActivationMeter lived and is none of the
/// others.
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
  /// Of all kinds, now.
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
