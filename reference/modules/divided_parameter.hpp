#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/mesh/parameter_layout.hpp"

/// Tensors of which each rank holds a part: moves their elements by the plans of mesh/parameter_layout.hpp.
///
///     const auto own = divided.part_of(complete);         // this rank's part
///     const auto complete = divided.complete_of(own);     // on every rank
///
/// Thread rule: the rank's thread.
namespace accel {

/// The part of a complete tensor, in new memory.
[[nodiscard]] at::Tensor part_of(const at::Tensor& complete, const Shard& shard, PartIndex which);
/// The complete tensor, on every rank of the group. Collective.
[[nodiscard]] at::Tensor complete_of(const at::Tensor& part, const Shard& shard, const Group& group);

/// A rank's part of a tensor: elements [range.begin, range.end) of it in row-major order.
struct TensorPart {
  std::string name = {};
  std::vector<std::int64_t> sizes = {};  ///< of the complete tensor
  ElementRange range = {};
  at::Tensor values = {};  ///< (range.size()), on the CPU
};

/// A parameter of a model, and tensors of the same shape, such as its gradient and an optimizer's moments.
struct DividedParameter {
  std::string name = {};
  ParameterLayout layout = {};     ///< of this rank
  std::vector<Group> groups = {};  ///< one per division: the ranks that hold the parts
  /// Whether this rank writes its part to checkpoints: exactly one of the ranks with equal parts does. None does if a
  /// layer divides the parameter: such parts are no ranges of elements and are saved as complete tensors only.
  bool writes_part = false;

  /// Whether a layer divides it over the ranks of this axis.
  [[nodiscard]] bool is_divided_over(MeshAxis axis) const;
  /// This rank's part of a tensor with the complete parameter's elements.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& complete) const;
  /// The complete tensor of which each rank has `part`. Collective.
  [[nodiscard]] at::Tensor complete_of(const at::Tensor& part) const;
  /// Describes this rank's part, under the parameter's name. The range is empty if the part is no range of elements.
  [[nodiscard]] TensorPart described(const at::Tensor& part) const;
};

}  // namespace accel
