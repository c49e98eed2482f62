#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "sim/collectives/tensors/ring_kernel.hpp"

/// Gloo's collectives as functions over the tensors of all ranks, sorted by rank. The last rank to arrive runs one of
/// them for all. Tensors on an accelerator are reduced on the host, as in Gloo.
/// All throw ArgumentError where Gloo throws. Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
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

/// Works in place on every rank's `inputs`, which are reduced as one flat buffer (one tensor: the plain form; several:
/// coalesced).
void all_reduce(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for);
/// Sparse tensors: adds every rank's `inputs[0]`, which is coalesced, in rank order, and writes the coalesced sum to
/// its `outputs[0]`.
void all_reduce_sparse(AllBuffers ranks);
/// Works in place on `inputs[0]`; ranks other than `root` keep partial results, as in Gloo.
void reduce(AllBuffers ranks, ReduceKind kind, int root, const ParallelFor& parallel_for);
/// Copies `inputs[0]` of `root` to every rank's `inputs[0]`.
void broadcast(AllBuffers ranks, int root);
/// For k inputs: rank r's `inputs[i]` goes to every rank's `outputs[r * k + i]`.
void all_gather(AllBuffers ranks, const ParallelFor& parallel_for);
/// `outputs` holds one tensor with the elements of all ranks in rank order.
void all_gather_into_tensor(AllBuffers ranks, const ParallelFor& parallel_for);
/// Rank r's `inputs[0]` goes to `outputs[r]` of `root`.
void gather(AllBuffers ranks, int root);
/// `inputs[r]` of `root` goes to rank r's `outputs[0]`.
void scatter(AllBuffers ranks, int root);
/// List form: one all-reduce per slot; rank r keeps slot r in `outputs[0]`. Inputs are not changed.
void reduce_scatter(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for);
/// Tensor form: one all-reduce over each complete `inputs[i]`; rank r keeps part r in `outputs[i]`.
void reduce_scatter_tensor(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for);
/// Two ranks of an all-to-all that disagree on how much one sends to the other: in rows of one tensor, or in elements
/// if the rows differ in width or the tensors are a list.
struct SplitMismatch {
  int from = 0, to = 0;
  std::int64_t sent = 0, expected = 0;
};
std::vector<SplitMismatch> all_to_all_single_mismatches(AllBuffers ranks);
std::vector<SplitMismatch> all_to_all_mismatches(AllBuffers ranks);
/// Both all-to-alls require that the corresponding `..._mismatches` returned none.
/// Rows of `inputs[0]` by `input_splits` go to rows of `outputs[0]` by `output_splits`.
void all_to_all_single(AllBuffers ranks);
/// Rank r's `inputs[s]` goes to rank s's `outputs[r]`.
void all_to_all(AllBuffers ranks);

}  // namespace accel::sim
