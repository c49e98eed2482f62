#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace accel {

/// bfloat16 weights with which a model computes, and their float32 master copies, which its optimizers step.
///
///     MasterWeights masters(parameters);  // matrices of `parameters` become bfloat16
///     backward();                         // gradients are bfloat16
///     masters.show_masters();             // the same tensors now have float32 values and gradients
///     optimizer.step();
///     masters.show_weights(/*masters_changed=*/true);
///
/// Vectors (biases, weights of norms) are float32: they are small, and normalization computes in float32. Parameters
/// keep their identity; only their data changes. Values that the program writes into a weight replace those of its
/// master. Parameters are float32 again after destruction. Thread rule: the rank's thread. Source: apex.amp's O2 with
/// master_weights.
class MasterWeights {
 public:
  explicit MasterWeights(const std::vector<at::Tensor>& parameters);
  ~MasterWeights();
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// The master copies, in the order of the parameters.
  [[nodiscard]] std::vector<at::Tensor> masters() const;
  /// The master copy of a parameter; the parameter itself if it has none.
  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const;
  /// The parameters show their masters, and their gradients in float32. Changes nothing if it throws.
  void show_masters();
  /// The parameters show their weights, cast from the masters if these have changed, and their own gradients.
  void show_weights(bool masters_changed);
  /// Casts the weights from the masters, whose values a checkpoint has replaced.
  void update_weights();
  /// Copies what the program has written into weights to their masters.
  void adopt_edits();

 private:
  struct Entry {
    at::Tensor parameter, weight, master, gradient;  // gradient: of the weight, while the parameter shows its master
    std::uint32_t version = 0;                       // of the parameter, when it last showed its weight
    bool shows_master = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace accel
