#pragma once

#include "reference/config/launch/launch_config.hpp"
#include "sim/programs/accel/prompt.hpp"

namespace accel::programs {

/// Asks the questions of `accelerate config`, in its order, except those that have no meaning here (torch dynamo,
/// fp8, mixture of experts). Dividing the model is offered on CPUs as well. If the user chooses an unsupported
/// device or cloud, explains that and asks again. Source: accelerate/commands/config/cluster.py.
LaunchConfig ask_launch_config(Prompt& prompt);

}  // namespace accel::programs
