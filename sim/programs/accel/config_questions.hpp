#pragma once

#include "reference/config/launch_config.hpp"
#include "sim/programs/accel/prompt.hpp"

namespace accel::programs {

/// What `accelerate config` asks, in its order, where it means something here; what does not (torch dynamo,
/// Megatron-LM, fp8, mixtures of experts) is not asked. Sharding is asked for on CPUs too. Devices and clouds that this
/// library does not know are answered, and the question is asked again. Source: accelerate/commands/config/cluster.py.
LaunchConfig ask_launch_config(Prompt& prompt);

}  // namespace accel::programs
