#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "reference/tree/tree.hpp"

/// How the ranks of a group hold the tensors that a module accepts and returns, for observers. Tensors of other types
/// than those of tensor_parallel/placement.hpp have no placement. Thread rule: values.
namespace accel {

struct TensorPlacement {
  std::string_view name = {};  ///< "replicated", "copied", "partial" or "sharded"; empty: none
  std::int64_t dim = 0;        ///< of "sharded"
};

/// Specialized by the types that state a placement.
template <typename T>
inline constexpr TensorPlacement placement_of = {};

namespace detail {

template <typename T>
void add_placements(const T& tree, std::vector<TensorPlacement>& placements) {
  if constexpr (Tree<T>) {
    for_each_tensor(tree, [&](const at::Tensor&) { placements.push_back(placement_of<T>); });
  }
}

/// One per tensor in the arguments.
template <typename... Args>
std::vector<TensorPlacement> placements_among(const Args&... args) {
  std::vector<TensorPlacement> placements;
  (add_placements(args, placements), ...);
  return placements;
}

}  // namespace detail

}  // namespace accel
