#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <vector>

namespace accel {

/// What happens around a prepared model's forward pass. The handle calls it in this order: before_forward, cast_input
/// for each tensor of the arguments, the module's forward, after_forward.
///
/// Every rank must call functions marked "Collective", in the same order. Thread rule: the rank's thread.
class ModelForward {
 public:
  virtual ~ModelForward() = default;

  /// The feature for which `after_forward` needs the tensors that forward returns, for error messages; null: none does.
  [[nodiscard]] virtual const char* feature_needing_outputs() const = 0;
  /// Whether the model also runs collectives inside forward.
  [[nodiscard]] virtual bool communicates_in_forward() const = 0;
  /// Collective if gradients synchronize.
  virtual void before_forward() = 0;
  /// Whether `cast_input` changes inputs: to the dtype or the memory format in which the model computes.
  [[nodiscard]] virtual bool casts_inputs() const = 0;
  [[nodiscard]] virtual at::Tensor cast_input(const at::Tensor& tensor) const = 0;
  /// Returns whether it has replaced `outputs` by tensors of equal values. If so, the caller must use them.
  virtual bool after_forward(std::vector<at::Tensor>& outputs) = 0;
  /// Throws StateError if this error of forward has a cause that the model recognizes.
  virtual void explain(const std::exception& error) const = 0;
  /// The same for an error of a backward pass.
  virtual void explain_backward(const std::exception& error) const = 0;
};

}  // namespace accel
