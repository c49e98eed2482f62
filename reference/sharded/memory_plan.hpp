#pragma once

#include <cstdint>

#include "reference/config/plugins/sharding.hpp"
#include "reference/sharded/unit_plan.hpp"

namespace accel::sharded {

/// The memory in bytes that a rank will hold, known before the model is constructed. It predicts what MemoryAccount
/// counts in a run, except activations.
struct MemoryPlan {
  std::int64_t parameters = 0;  ///< between steps
  std::int64_t gradients = 0;   ///< when the optimizer steps
  std::int64_t optimizer = 0;   ///< moments and other state per element; step counts are not included
  std::int64_t gathered = 0;    ///< peak, while units compute one after another
};

/// `state_bytes_per_element`: the optimizer's state per parameter element, 8 for Adam with float32. Pure. Source of the
/// formulas: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, section 5.
MemoryPlan plan_memory(const ModelPlan& plan, const ModelDescription& model, const ShardingOptions& options,
                       std::int64_t state_bytes_per_element);

}  // namespace accel::sharded
