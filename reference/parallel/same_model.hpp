#pragma once

#include "reference/comm/group.hpp"
#include "reference/state/step_listener.hpp"

namespace accel {

/// Compares the tensors of the ranks' models by number, dtype, shape, strides and requires_grad; names may differ.
///
/// Collective: one all-gather of 8 bytes a rank, and four more if they differ. Python's gathers a tensor for each other
/// rank (6.5 GB if 4,096 ranks share a process), and throws on some ranks while the others wait.
/// Throws ArgumentError on every rank alike, with the first tensor that differs as each rank has it.
void check_same_model(const Group& group, const NamedTensors& tensors);

}  // namespace accel
