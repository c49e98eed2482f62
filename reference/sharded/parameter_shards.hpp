#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/sharded/unit_plan.hpp"

namespace accel::sharded {

/// A rank's part of a tensor: elements [part.begin, part.end) of it in row-major order.
struct ShardPiece {
  std::string name = {};
  std::vector<std::int64_t> sizes = {};  ///< of the complete tensor
  Range part = {};
  at::Tensor values = {};  ///< (part.size()), on the CPU
};

/// Which part of each parameter this rank holds. With it, tensors that are shaped like such a part (an optimizer's
/// moments) are saved and loaded. Every function but `holds` throws ArgumentError for a parameter that is not divided.
///
/// Thread rule: the rank's thread.
class ParameterShards {
 public:
  virtual ~ParameterShards() = default;

  /// Whether it is one of the parameters that are divided.
  [[nodiscard]] virtual bool holds(const at::Tensor& parameter) const = 0;
  [[nodiscard]] virtual const std::string& name_of(const at::Tensor& parameter) const = 0;
  /// The complete tensor of which each rank has `part`. Collective.
  [[nodiscard]] virtual at::Tensor whole_of(const at::Tensor& parameter, const at::Tensor& part) const = 0;
  /// A tensor that is shaped like this rank's part, as a piece of the parameter's name.
  [[nodiscard]] virtual ShardPiece piece_of(const at::Tensor& parameter, const at::Tensor& part) const = 0;
  /// This rank's part of a tensor that is shaped like the complete parameter.
  [[nodiscard]] virtual at::Tensor part_of(const at::Tensor& parameter, const at::Tensor& whole) const = 0;
  /// Of the ranks that hold equal parts, one writes them to a checkpoint.
  [[nodiscard]] virtual bool writes_pieces() const = 0;
};

}  // namespace accel::sharded
