#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace accel {

/// Copies of a forward's outputs that hang together: a backward pass from one of them reaches all, the others with
/// undefined gradients, so that parameters behind an output that the loss does not use tell that they are done. Tensors
/// without a gradient function are returned as they are.
///
/// `at_end`, if any, is called on the pass's thread when all its gradients are there. Thread rule: the rank's thread.
/// Source: torch/nn/parallel/distributed.py, _DDPSink.
std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, std::function<void()> at_end);

}  // namespace accel
