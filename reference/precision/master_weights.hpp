#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accel {

/// bfloat16 weights with which a model computes, and their float32 master copies, which its optimizers step.
///
///     MasterWeights masters(parameters);  // float32 matrices of `parameters` become bfloat16
///     backward();                         // gradients are bfloat16
///     masters.show_masters();             // the same tensors now have float32 values and gradients
///     optimizer.step();
///     masters.show_weights(/*masters_changed=*/true);
///
/// Vectors (biases, weights of norms) stay float32: they are small, and normalization computes in float32. Parameters
/// keep their identity; only their data changes. Thread rule: the rank's thread. Source: apex.amp's O2 with
/// master_weights.
class MasterWeights {
 public:
  explicit MasterWeights(const std::vector<at::Tensor>& parameters);

  /// The master copies, in the order of the parameters.
  [[nodiscard]] std::vector<at::Tensor> masters() const;
  /// The master copy of a parameter; the parameter itself if it has none.
  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const;
  /// The parameters show their masters, and their gradients in float32.
  void show_masters();
  /// The parameters show their weights, cast from the masters if these have changed, and their own gradients.
  void show_weights(bool masters_changed);
  /// Casts the weights from the masters, whose values a checkpoint has replaced.
  void update_weights();

 private:
  struct Entry {
    at::Tensor parameter, weight, master, gradient;  // gradient: of the weight, while the parameter shows its master
  };
  std::vector<Entry> entries_;
};

}  // namespace accel
