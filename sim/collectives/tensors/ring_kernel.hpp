#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <span>

#include "sim/collectives/ring_plan.hpp"

namespace accel::sim {

enum class Reduction { kSum, kProduct, kMin, kMax, kBitwiseAnd, kBitwiseOr, kBitwiseXor };

/// Calls `body(0) .. body(count - 1)`, possibly in parallel.
using ParallelFor = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& body)>;

/// Reduces `buffers` (one per rank, `plan.num_elements` of `dtype` each) in the ring's order; every buffer then holds
/// the same bytes. Each partial result is rounded to `dtype`; MAX and MIN drop NaN as std::max and std::min do; bool
/// adds bytes.
/// Throws ArgumentError for a dtype that Gloo does not reduce and for a bitwise operation on a float.
void ring_all_reduce(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
                     const ParallelFor& parallel_for);

/// Like ring_all_reduce, but writes the result to one buffer, `total`, and does not change the ranks' buffers.
void ring_sum(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
              void* total, const ParallelFor& parallel_for);

/// Like Gloo's reduce: `root` holds the result, the others keep the partial results that passed through them.
void ring_reduce(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
                 int root, const ParallelFor& parallel_for);

}  // namespace accel::sim
