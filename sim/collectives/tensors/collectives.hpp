#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/collective.hpp"
#include "reference/diagnosis/diagnose.hpp"
#include "sim/collectives/tensors/ring_kernel.hpp"

/// Gloo's collectives over the tensors of all ranks, sorted by rank, which are at::Tensor or HostTensor.
///
///     compute<HostTensor>({.op = Collective::kAllReduce}, ranks, parallel_for);
///
/// The last rank to arrive computes for all. Tensors on an accelerator are reduced on the host, as in Gloo.
/// Throws ArgumentError where Gloo throws. Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
namespace accel::sim {

/// What one rank brings to a collective; which fields are used depends on the operation.
template <typename Tensor>
struct BuffersOf {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<std::int64_t> input_splits, output_splits;  // rows, all_to_all_single; empty means equal parts
};

template <typename Tensor>
using AllBuffersOf = std::span<BuffersOf<Tensor>* const>;

struct ReduceKind {
  Reduction reduction = Reduction::kSum;
  /// Divide the sum by the number of ranks, as PyTorch's AVG does.
  bool average = false;
};

/// Of an all-to-all; none for other collectives.
template <typename Tensor>
std::vector<SplitMismatch> split_mismatches(Collective op, AllBuffersOf<Tensor> ranks);

/// A collective without its tensors.
struct CollectiveOfAll {
  Collective op{};
  ReduceKind kind = {};
  int root = -1;
};
/// Computes the result for all ranks. Requires that `split_mismatches` returned none.
template <typename Tensor>
void compute(const CollectiveOfAll& collective, AllBuffersOf<Tensor> ranks, const ParallelFor& parallel_for);
/// Which elements of the result are NaN, after a reduction of the ranks' inputs number `item`.
template <typename Tensor>
std::vector<bool> nans_of_result(const CollectiveOfAll& collective, AllBuffersOf<Tensor> ranks, std::size_t item);

}  // namespace accel::sim
