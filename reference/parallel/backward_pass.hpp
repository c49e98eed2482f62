#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "reference/comm/group.hpp"

namespace accel {

/// Copies of a forward's outputs that hang together: a backward pass from one of them reaches all, the others with
/// undefined gradients, so that parameters behind an output that the loss does not use tell that they are done. Tensors
/// without a gradient function are returned as they are.
///
/// `at_end`, if any, is called on the pass's thread when all its gradients are there. Thread rule: the rank's thread.
/// Source: torch/nn/parallel/distributed.py, _DDPSink.
std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, std::function<void()> at_end);

/// The group for tensors on `device`, whose all-reduces are waited for before they are returned while `*is_patient`.
///
/// The first backward pass of a static graph ends with c10d's delay_all_reduce, which calls all-reduces and then waits
/// for their futures: a simulated rank that blocks there is not seen by its engine, and nobody else is let run. Thread
/// rule: as the group.
Group patient_group(const Group& group, c10::Device device, std::shared_ptr<const bool> is_patient);

}  // namespace accel
