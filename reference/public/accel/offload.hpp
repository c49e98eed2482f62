#pragma once

/// Models that are larger than memory: device maps, offloading, modules built without memory, layer-wise casting, hooks
/// of modules, and the memory that a sharded model needs.
#include "reference/modules/hooks.hpp"
#include "reference/offload/device_hooks.hpp"
#include "reference/offload/dispatch.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/layerwise_casting.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/offload/module_tensors.hpp"
#include "reference/sharded/memory_plan.hpp"
