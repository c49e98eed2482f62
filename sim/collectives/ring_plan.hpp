#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

/// How Gloo's ring cuts a buffer into chunks, which determines the order in which every element is summed.
///
/// Chunk c starts at rank c-1 and travels c-2, c-3, ..., c: `acc = x[c-1]; for t = 2..P: acc = x[c-t] OP acc`, all rank
/// numbers modulo P, the rank's own operand first. PyTorch's Gloo runs the ring at every size, dtype and P >= 2.
/// Source: gloo/allreduce.cc (ring), gloo/reduce.cc.
namespace accel::sim {

struct RingPlan {
  int num_ranks = 1;
  std::int64_t num_elements = 0;
  std::int64_t segment_elements = 0;
  std::int64_t segments_per_chunk = 0;

  [[nodiscard]] std::int64_t chunk_elements() const { return segment_elements * segments_per_chunk; }
  /// First and one past the last element of chunk c; empty for high c of short buffers.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> chunk(int c) const {
    return {std::min(c * chunk_elements(), num_elements), std::min((c + 1) * chunk_elements(), num_elements)};
  }
};

/// Sizes in elements of `element_bytes` each.
RingPlan plan_all_reduce(std::int64_t num_elements, std::int64_t element_bytes, int num_ranks);
RingPlan plan_reduce(std::int64_t num_elements, std::int64_t element_bytes, int num_ranks);

}  // namespace accel::sim
