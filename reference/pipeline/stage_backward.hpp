#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

/// The backward pass of one stage for one micro-batch, complete or in two halves.
///
///     StageBackward backward(outputs, inputs);
///     send(backward.of_inputs(gradients));   // the stage before waits for these
///     ...
///     backward.of_weights();                 // later, where the rank would wait
///
/// Both halves together compute what a complete pass computes, with the same bits and nothing twice. Gradients of
/// weights are added to `.grad`. The first half also computes those of recomputed layers (checkpointing), and all of a
/// stage that uses a weight twice. Thread rule: the rank's thread.
namespace accel::pipeline {

class StageBackward {
 public:
  /// `outputs` as the stage's forward returned them; `inputs`: the leaves from which it computed them, without `.grad`.
  StageBackward(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);
  ~StageBackward();
  StageBackward(StageBackward&&) noexcept;
  StageBackward& operator=(StageBackward&&) noexcept;

  /// `gradients` of the outputs; an undefined one is zero. Returns those of the inputs; undefined for inputs that need
  /// none, or that the outputs do not depend on.
  [[nodiscard]] std::vector<at::Tensor> complete(const std::vector<at::Tensor>& gradients);
  [[nodiscard]] std::vector<at::Tensor> of_inputs(const std::vector<at::Tensor>& gradients);
  /// After of_inputs.
  void of_weights();

 private:
  struct Halves;

  std::vector<at::Tensor> run_all();

  std::vector<at::Tensor> outputs_, inputs_;
  std::unique_ptr<Halves> halves_;
};

}  // namespace accel::pipeline
