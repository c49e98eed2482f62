#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace accel {

/// Tells gradients that a backward pass has computed from those that the program has written into parameters.
///
/// Thread rule: the rank's thread, or autograd's while that one waits.
class GradientMarks {
 public:
  explicit GradientMarks(std::vector<at::Tensor> parameters);

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Notes that a backward pass has added to the gradient of parameter `place`.
  void note_arrival(std::size_t place) { has_arrived_[place] = true; }
  /// By parameter: whether the program has written the gradient since the last call: none has arrived, and it is
  /// another tensor.
  [[nodiscard]] std::vector<bool> take_written();
  /// Takes over the marks of parameters that `other` has too.
  void continue_from(const GradientMarks& other);

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<at::Tensor> parameters_;
  std::vector<bool> has_arrived_;  // since the last take_written
  std::vector<WeakTensor> taken_;  // the last take_written's gradients: weak ones keep their address, not their memory
};

}  // namespace accel
