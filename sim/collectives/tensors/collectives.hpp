#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "reference/core/collective.hpp"
#include "sim/collectives/tensors/ring_kernel.hpp"

/// Gloo's collectives over the tensors of all ranks, sorted by rank.
///
///     compute({.op = Collective::kAllReduce}, ranks, parallel_for);
///
/// The last rank to arrive computes for all. Tensors on an accelerator are reduced on the host, as in Gloo.
/// Throws ArgumentError where Gloo throws. Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
namespace accel::sim {

/// What one rank brings to a collective; which fields are used depends on the operation.
struct Buffers {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::int64_t> input_splits;   // all_to_all: rows for each rank; empty: equal parts
  std::vector<std::int64_t> output_splits;  // all_to_all: rows from each rank
};
using AllBuffers = std::span<Buffers* const>;

/// `average`: the sum is divided by the number of ranks afterwards; floating dtypes only.
struct ReduceKind {
  Reduction reduction = Reduction::kSum;
  bool average = false;
};

/// Two ranks of an all-to-all that disagree on how much one sends to the other: in rows of one tensor, or in elements
/// if the rows differ in width or the tensors are a list.
struct SplitMismatch {
  int from = 0, to = 0;
  std::int64_t sent = 0, expected = 0;
};
/// None for other collectives.
std::vector<SplitMismatch> split_mismatches(Collective op, AllBuffers ranks);

/// A collective without its tensors.
struct CollectiveOfAll {
  Collective op{};
  ReduceKind kind = {};
  int root = -1;
};
/// Computes the result for all ranks. Requires that `split_mismatches` returned none.
void compute(const CollectiveOfAll& collective, AllBuffers ranks, const ParallelFor& parallel_for);
/// The result of a reduction of the ranks' inputs number `item`. Of a scattered one, its parts together.
at::Tensor reduced(const CollectiveOfAll& collective, AllBuffers ranks, std::size_t item);

}  // namespace accel::sim
