#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "reference/modules/tensor_placement.hpp"
#include "reference/tree/tree.hpp"

/// How the ranks of a group hold a tensor, as its type. Layers that are cut accept and return these types, and only the
/// functions of operators.hpp convert between them, so a program that forgets a reduction does not compile.
///
///     accel::parallel::Sharded<-1> hidden = gelu(expansion(copy(values, group)));
///     accel::parallel::Replicated output = reduce(product(hidden), group);
///
/// | type | value on a rank | gradient on a rank |
/// |---|---|---|
/// | Replicated | the tensor | its gradient |
/// | Copied | the tensor | a part of the sum that is its gradient |
/// | Partial | a part of the sum that is the tensor | the tensor's gradient |
/// | Sharded<kDim> | the rank's part along a dimension | the gradient of that part |
///
/// Rows that have been sent to the ranks of their experts are Routed: which rows those are depends on the data.
///
/// `local` is the rank's own tensor. Thread rule: values of the rank's thread.
namespace accel::parallel {

struct Replicated {
  at::Tensor local = {};
};

struct Copied {
  at::Tensor local = {};
};

struct Partial {
  at::Tensor local = {};
};

/// Part r of dimension `kDim` on rank r. A negative dimension counts from the end.
template <std::int64_t kDim>
struct Sharded {
  at::Tensor local = {};
  /// The length of the complete dimension if it does not divide, so that the last parts are shorter; 0: equal parts.
  std::int64_t uneven_length = 0;
};

struct Routed {
  at::Tensor local = {};
};

/// A function of each element, such as an activation, keeps the placement.
template <std::int64_t kDim, typename Function>
Sharded<kDim> elementwise(const Sharded<kDim>& values, Function&& function) {
  return {function(values.local), values.uneven_length};
}

}  // namespace accel::parallel

namespace accel {

template <>
inline constexpr TensorPlacement placement_of<parallel::Replicated>{"replicated"};
template <>
inline constexpr TensorPlacement placement_of<parallel::Copied>{"copied"};
template <>
inline constexpr TensorPlacement placement_of<parallel::Partial>{"partial"};
template <std::int64_t kDim>
inline constexpr TensorPlacement placement_of<parallel::Sharded<kDim>>{"sharded", kDim};
template <>
inline constexpr TensorPlacement placement_of<parallel::Routed>{"routed"};

template <>
inline constexpr auto tree_members<parallel::Replicated> = std::tuple(&parallel::Replicated::local);
template <>
inline constexpr auto tree_members<parallel::Copied> = std::tuple(&parallel::Copied::local);
template <>
inline constexpr auto tree_members<parallel::Partial> = std::tuple(&parallel::Partial::local);
template <>
inline constexpr auto tree_members<parallel::Routed> = std::tuple(&parallel::Routed::local);
template <std::int64_t kDim>
inline constexpr auto tree_members<parallel::Sharded<kDim>> = std::tuple(&parallel::Sharded<kDim>::local);

}  // namespace accel
