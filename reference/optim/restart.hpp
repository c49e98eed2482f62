#pragma once

#include <torch/optim/optimizer.h>

namespace accel::optim {

/// Makes the state that some optimizers (Adagrad, LibTorch's too) have from their construction on anew, for parameters whose shapes
/// have changed since. False, and nothing is changed, if the optimizer has stepped.
/// Thread rule: the rank's thread. Source: torch/optim/adagrad.py, __init__.
bool restart(torch::optim::Optimizer& optimizer);

}  // namespace accel::optim
