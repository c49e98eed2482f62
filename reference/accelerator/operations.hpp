#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tree/tree.hpp"

/// Collectives on single tensors with the semantics of Accelerate. TreeOperations maps them over trees of tensors.
/// Functions with a `group` parameter are collective over it. Source: accelerate/utils/operations.py.
namespace accel::operations {

/// (n, ...) on each rank -> (P * n, ...); a 0-d tensor gives (P). Equal shapes on all ranks.
at::Tensor gather(const Group& group, const at::Tensor& tensor);

/// The same with gradients: the gradient of a rank's rows is the sum of what all ranks' losses contribute to it, so
/// that a model whose gradients are averaged over the ranks is trained on the mean of their losses.
at::Tensor gather_with_gradients(const Group& group, const at::Tensor& tensor);

/// Returns a reduced copy, multiplied by `scale`. `reduction`: "sum", "mean" (sum over ranks divided by P), "max", or
/// "none", which sums too, as in Accelerate. Throws ArgumentError for another word, and for "mean" of integers.
at::Tensor reduce(const Group& group, const at::Tensor& tensor, const std::string& reduction, double scale = 1.0);

struct PadOptions {
  std::int64_t dim = 0;
  double pad_index = 0;
  bool pad_first = false;
};

/// Pads dimension `dim` to the largest size over all ranks. Returns the tensor itself if it already has that size, or
/// lacks this dimension.
at::Tensor pad_across_processes(const Group& group, const at::Tensor& tensor, PadOptions options = {});

struct PadInputOptions {
  std::int64_t batch_size = 0;  ///< rows of the tensor
  int num_processes = 1;
  std::int64_t dim = 0;
};

/// Appends zeros to `tensor` on dimension `dim` until `batch_size` is padded to a multiple of `num_processes`. Not
/// collective. Throws ArgumentError if the tensor lacks this dimension. Unlike Accelerate it appends no excess rows.
at::Tensor pad_input_tensors(const at::Tensor& tensor, PadInputOptions options);

/// Copies `tensor` of rank `from_process` to every rank, in place.
void broadcast(const Group& group, at::Tensor& tensor, int from_process = 0);

/// Returns the tensor that exactly one rank passes, on the device of each rank. Throws ArgumentError on every rank if
/// none or several do. Source: accelerate/utils/operations.py, copy_tensor_to_devices.
at::Tensor copy_tensor_to_devices(RankContext& context, const std::optional<at::Tensor>& tensor);

/// Debug mode: checks that the tensors of all ranks have equal shapes, or equal numbers of dimensions, and are on a
/// device of the type of `device`. Throws DistributedOperationException on every rank, listing what each rank has.
/// Source: accelerate/utils/operations.py, verify_operation.
enum class Compared { kShapes, kNumDimensions };
void verify(const Group& group, const char* operation, c10::Device device, const std::vector<at::Tensor>& tensors,
            Compared compared = Compared::kShapes);

/// The contiguous range of `num_items` items that rank `rank` of `num_ranks` gets. The first `num_items % num_ranks`
/// ranks get one item more than the others.
struct ItemRange {
  std::int64_t begin = 0, end = 0;
};
ItemRange split_items(std::int64_t num_items, int num_ranks, int rank);

}  // namespace accel::operations
