#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/modules/tensor_placement.hpp"

/// Compares what the ranks of a tensor-parallel group must have in common: the inputs of a model's first training
/// forward, and before its first optimizer step the gradients of the parameters that every rank holds completely.
///
///     if (check.awaits_inputs()) check.compare_inputs(tensors, placements);
///
/// A rank that reads other samples than its peers, and a layer whose parts are not declared as a CutModule, train wrong
/// weights without any other error. All ranks of the world take part, so that all throw the same message. Thread rule:
/// the rank's thread.
namespace accel {

class PeerCheck {
 public:
  /// `peers`: the tensor-parallel ranks; nothing is compared in a group of one.
  explicit PeerCheck(Group peers);

  [[nodiscard]] bool awaits_inputs() const { return awaits_inputs_; }
  [[nodiscard]] bool awaits_gradients() const { return awaits_gradients_; }
  /// Compares tensors of which every rank should have all elements. Inputs with a gradient are left out, since kernels
  /// may have computed them with other rounding. Throws ArgumentError on every rank. Collective of the world.
  void compare_inputs(const std::vector<at::Tensor>& inputs, const std::vector<TensorPlacement>& placements);
  /// Compares gradients up to rounding, once any rank has one. Throws StateError on every rank. Collective of the
  /// world.
  void compare_gradients(const NamedTensors& complete_parameters);

 private:
  Group peers_;
  bool awaits_inputs_, awaits_gradients_;
};

}  // namespace accel
