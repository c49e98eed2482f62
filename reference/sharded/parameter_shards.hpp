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

/// Which part of each parameter this rank holds. It is used to save and load tensors with the shape of such a part, for
/// example an optimizer's moments. Every function except `holds` throws ArgumentError for a parameter that is not
/// sharded.
///
/// Thread rule: the rank's thread.
class ParameterShards {
 public:
  virtual ~ParameterShards() = default;

  /// Whether `parameter` is sharded.
  [[nodiscard]] virtual bool holds(const at::Tensor& parameter) const = 0;
  [[nodiscard]] virtual const std::string& name_of(const at::Tensor& parameter) const = 0;
  /// Assembles the full tensor of which each rank has `part`. Collective.
  [[nodiscard]] virtual at::Tensor full_tensor_of(const at::Tensor& parameter, const at::Tensor& part) const = 0;
  /// Describes a tensor with the shape of this rank's part as a piece, under the parameter's name.
  [[nodiscard]] virtual ShardPiece piece_of(const at::Tensor& parameter, const at::Tensor& part) const = 0;
  /// Cuts this rank's part out of a tensor with the full parameter's shape.
  [[nodiscard]] virtual at::Tensor part_of(const at::Tensor& parameter, const at::Tensor& whole) const = 0;
  /// Whether this rank writes its pieces to checkpoints: exactly one of the ranks with equal parts does.
  [[nodiscard]] virtual bool writes_pieces() const = 0;
};

}  // namespace accel::sharded
