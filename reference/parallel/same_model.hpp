#pragma once

#include "reference/comm/group.hpp"
#include "reference/state/step_observer.hpp"

namespace accel {

/// Compares the ranks' models by the number, dtype, shape, strides and requires_grad of their tensors; names may
/// differ.
///
/// Collective: one all-gather of 8 bytes per rank, and four more if the models differ. Python gathers a tensor per pair
/// of ranks (6.5 GB if 4,096 ranks share a process), and throws on some ranks while the others wait. Throws
/// ArgumentError on every rank; the message shows the first tensor that differs, as each rank has it.
void check_same_model(const Group& group, const NamedTensors& tensors);

}  // namespace accel
