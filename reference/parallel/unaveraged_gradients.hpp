#pragma once

#include "reference/core/named_tensors.hpp"

namespace accel {

/// Parameters whose gradients were not averaged over the ranks before a step.
struct UnaveragedGradients {
  NamedTensors bypassing = {};  ///< the loss did not come from the prepared model
  NamedTensors written = {};    ///< the program itself has put the gradient there
};

}  // namespace accel
