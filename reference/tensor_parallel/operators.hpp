#pragma once

#include <functional>

#include "reference/comm/group.hpp"
#include "reference/tensor_parallel/placement.hpp"

/// Conversions between placements. All are differentiable. Each is the gradient of its neighbour in the table, so
/// forward and backward communicate; every rank of the group must run both, in the same order.
///
/// | function | forward | backward |
/// |---|---|---|
/// | copy | none | all-reduce |
/// | reduce | all-reduce | none |
/// | scatter | takes the rank's part | all-gather |
/// | gather | all-gather | takes the rank's part |
/// | gather_copied | all-gather | reduce-scatter |
/// | reduce_scatter | reduce-scatter | all-gather |
///
/// Tensors have equal shapes and dtypes on all ranks; a dimension that is divided must be a multiple of the group's
/// size, or they throw ArgumentError. `gather` also accepts the parts of a layer whose features do not divide. In a
/// group of one rank they return their argument, copy and gather_copied a view of it, whose gradient is that of the
/// region. Source:
/// github.com/NVIDIA/Megatron-LM, megatron/core/tensor_parallel/mappings.py.
namespace accel::parallel {

/// Enters a region that is cut: what its layers read.
Copied copy(const Replicated& values, const Group& group);
/// Leaves a region that is cut.
Replicated reduce(const Partial& values, const Group& group);

namespace detail {
at::Tensor scattered(const at::Tensor& values, std::int64_t dim, const Group& group);
at::Tensor gathered(const at::Tensor& values, std::int64_t dim, const Group& group, std::int64_t uneven_length);
void check_even(std::int64_t uneven_length, const Group& group);
at::Tensor gathered_copied(const at::Tensor& values, std::int64_t dim, const Group& group);
at::Tensor reduce_scattered(const at::Tensor& values, std::int64_t dim, const Group& group);
}  // namespace detail

template <std::int64_t kDim>
Sharded<kDim> scatter(const Replicated& values, const Group& group) {
  return {detail::scattered(values.local, kDim, group)};
}
template <std::int64_t kDim>
Replicated gather(const Sharded<kDim>& values, const Group& group) {
  return {detail::gathered(values.local, kDim, group, values.uneven_length)};
}
/// Enters a cut region from values that are sharded along another dimension: sequence parallelism.
template <std::int64_t kDim>
Copied gather_copied(const Sharded<kDim>& values, const Group& group) {
  detail::check_even(values.uneven_length, group);
  return {detail::gathered_copied(values.local, kDim, group)};
}
/// Leaves a cut region towards values that are sharded along another dimension.
template <std::int64_t kDim>
Sharded<kDim> reduce_scatter(const Partial& values, const Group& group) {
  return {detail::reduce_scattered(values.local, kDim, group)};
}

/// `forward(values)`, whose gradient is `backward(gradient)`. Both may communicate. For operators on placements that
/// are not in the table.
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;
at::Tensor with_gradient(const at::Tensor& values, const TensorFunction& forward, const TensorFunction& backward);

// The arithmetic of the operators, without gradients.
/// Concatenates the parts of all ranks along `dim`.
at::Tensor all_gathered_parts(const at::Tensor& part, std::int64_t dim, const Group& group);
/// Sums over the ranks and returns this rank's part along `dim`.
at::Tensor sum_scattered(const at::Tensor& values, std::int64_t dim, const Group& group);
/// This rank's part along `dim`. Throws ArgumentError if the dimension does not divide.
at::Tensor own_part(const at::Tensor& values, std::int64_t dim, const Group& group);
/// The sum over the ranks, in a new tensor.
at::Tensor all_reduced(const at::Tensor& values, const Group& group);

}  // namespace accel::parallel
