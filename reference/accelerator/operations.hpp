#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "reference/comm/group.hpp"
#include "reference/core/tree.hpp"

/// Collectives on single tensors, with Accelerate's rules; the Accelerator maps them over trees.
/// Every function is collective over `group`. Source: accelerate/utils/operations.py.
namespace accel::operations {

/// (n, ...) on each rank -> (P * n, ...); a 0-d tensor gives (P). Equal shapes on all ranks.
at::Tensor gather(const Group& group, const at::Tensor& tensor);

/// A reduced copy. `reduction`: "sum", "mean" (sum over ranks divided by P), "max", or "none", which sums as well, as in
/// Accelerate. Throws ArgumentError for another word, and for "mean" of integers.
at::Tensor reduce(const Group& group, const at::Tensor& tensor, const std::string& reduction, double scale = 1.0);

struct PadOptions {
  std::int64_t dim = 0;
  double pad_index = 0;
  bool pad_first = false;
};

/// Pads dimension `dim` to the largest size over the ranks. Returns the tensor itself if it is as large, or has no such
/// dimension.
at::Tensor pad_across_processes(const Group& group, const at::Tensor& tensor, PadOptions options = {});

/// In place: `tensor` of rank `from_process` on every rank.
void broadcast(const Group& group, at::Tensor& tensor, int from_process = 0);

}  // namespace accel::operations
