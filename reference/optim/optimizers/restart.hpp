#pragma once

#include <torch/optim/optimizer.h>

/// An optimizer whose parameters get other shapes before its first step. Thread rule: the rank's thread.
namespace accel::optim {

/// Whether there is state of a step. Adagrad, LibTorch's too, keeps state from its construction on, which is none.
[[nodiscard]] bool has_stepped(const torch::optim::Optimizer& optimizer);

/// Makes what the optimizer keeps from its construction on anew. Source: torch/optim/adagrad.py, __init__.
void restart(torch::optim::Optimizer& optimizer);

}  // namespace accel::optim
