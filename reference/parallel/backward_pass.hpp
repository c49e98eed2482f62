#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "reference/comm/group.hpp"

namespace accel {

/// Returns copies of a forward's outputs that share one autograd node. A backward pass from any of them reaches the
/// others with undefined gradients, so that parameters that only feed an output outside the loss are also marked ready.
/// Tensors without a gradient function are returned unchanged.
///
/// `at_end`, if set, is called on the backward pass's thread after all its gradients have been computed. Thread rule:
/// the rank's thread. Source: torch/nn/parallel/distributed.py, _DDPSink.
std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, std::function<void()> at_end);

/// Runs one backward pass that brings each parameter its own gradient again, so that hooks see what several passes have
/// added up. Thread rule: the rank's thread.
void deliver_gradients(const std::vector<at::Tensor>& parameters);

/// Returns the group for tensors on `device`, with all-reduces that block until they are complete while `*is_blocking`.
///
/// The first backward pass of a static graph ends with c10d's delay_all_reduce, which starts all-reduces and then waits
/// for their futures. The simulator does not notice a rank that blocks in a future, so it would never schedule the
/// others. Thread rule: as the group.
Group blocking_group(const Group& group, c10::Device device, std::shared_ptr<const bool> is_blocking);

}  // namespace accel
