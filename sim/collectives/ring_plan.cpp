// Copies the arithmetic of gloo/allreduce.cc and gloo/reduce.cc, including its rounding: one element more or
// less in a segment moves the chunk boundaries, and with them the order of summation and the bits of the result.
#include "sim/collectives/ring_plan.hpp"

#include "reference/core/integers.hpp"

namespace accel::sim {
namespace {

// gloo/allreduce.h, kMaxSegmentSize.
constexpr std::int64_t kMaxSegmentBytes = 1 << 20;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return divide_up(value, multiple) * multiple; }

RingPlan make_plan(std::int64_t num_elements, std::int64_t element_bytes, int num_ranks, std::int64_t num_segments,
                   std::int64_t segment_bytes) {
  return {.num_ranks = num_ranks,
          .num_elements = num_elements,
          .segment_elements = segment_bytes / element_bytes,
          .segments_per_chunk = num_segments / num_ranks};
}

}  // namespace

// At least two segments per chunk, so that one can be reduced while the other is received.
RingPlan plan_all_reduce(std::int64_t num_elements, std::int64_t element_bytes, int num_ranks) {
  const auto bytes = num_elements * element_bytes;
  const auto max_segment = element_bytes * std::max<std::int64_t>(1, kMaxSegmentBytes / element_bytes);
  const auto num_segments = round_up(std::max<std::int64_t>(divide_up(bytes, max_segment), 2 * num_ranks), num_ranks);
  return make_plan(num_elements, element_bytes, num_ranks, num_segments,
                   round_up(divide_up(bytes, num_segments), element_bytes));
}

// Unlike the all-reduce, gloo/reduce.cc fixes the segment size first and derives the number of segments from it.
RingPlan plan_reduce(std::int64_t num_elements, std::int64_t element_bytes, int num_ranks) {
  if (num_elements == 0) return {.num_ranks = num_ranks};
  const auto bytes = num_elements * element_bytes;
  const auto max_segment = element_bytes * (kMaxSegmentBytes / element_bytes);
  const auto segment = round_up(std::min(divide_up(bytes, 2 * num_ranks), max_segment), element_bytes);
  const auto num_segments = round_up(std::max<std::int64_t>(divide_up(bytes, segment), 2 * num_ranks), num_ranks);
  return make_plan(num_elements, element_bytes, num_ranks, num_segments, segment);
}

}  // namespace accel::sim
