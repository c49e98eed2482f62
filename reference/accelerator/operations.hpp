#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/tree.hpp"

/// Collectives on single tensors, with Accelerate's rules; the Accelerator maps them over trees.
/// Every function is collective over `group`. Source: accelerate/utils/operations.py.
namespace accel::operations {

/// (n, ...) on each rank -> (P * n, ...); a 0-d tensor gives (P). Equal shapes on all ranks.
at::Tensor gather(const Group& group, const at::Tensor& tensor);

/// A reduced copy. `reduction`: "sum", "mean" (sum over ranks divided by P), "max", or "none", which sums as well, as
/// in Accelerate. Throws ArgumentError for another word, and for "mean" of integers.
at::Tensor reduce(const Group& group, const at::Tensor& tensor, const std::string& reduction, double scale = 1.0);

struct PadOptions {
  std::int64_t dim = 0;
  double pad_index = 0;
  bool pad_first = false;
};

/// Pads dimension `dim` to the largest size over the ranks. Returns the tensor itself if it is as large, or has no such
/// dimension.
at::Tensor pad_across_processes(const Group& group, const at::Tensor& tensor, PadOptions options = {});

struct PadInputOptions {
  std::int64_t batch_size = 0;  ///< rows of the tensor
  int num_processes = 1;
  std::int64_t dim = 0;
};

/// `tensor` with zeros appended on dimension `dim`, up to the least multiple of `num_processes` that holds its rows.
/// Not a collective. Throws ArgumentError if the tensor has no such dimension. Accelerate appends too many.
at::Tensor pad_input_tensors(const at::Tensor& tensor, PadInputOptions options);

/// In place: `tensor` of rank `from_process` on every rank.
void broadcast(const Group& group, at::Tensor& tensor, int from_process = 0);

/// Debug mode: whether the tensors of all ranks are on `device`'s type and of equal shapes, told over `group`. Throws
/// DistributedOperationException on every rank, with what each has. Source: accelerate/utils/operations.py,
/// verify_operation.
void verify(const Group& group, const char* operation, c10::Device device, const std::vector<at::Tensor>& tensors);

/// Which items of `num_items` rank `rank` of `num_ranks` gets: contiguous, the first `num_items % num_ranks` ranks one
/// more.
struct ItemRange {
  std::int64_t begin = 0, end = 0;
};
ItemRange split_items(std::int64_t num_items, int num_ranks, int rank);

}  // namespace accel::operations
