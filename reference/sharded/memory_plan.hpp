#pragma once

#include <cstdint>

#include "reference/config/sharding.hpp"
#include "reference/sharded/unit_plan.hpp"

namespace accel::sharded {

/// Bytes that a rank will hold, known before a model is there: what MemoryAccount counts in a run. Activations are not
/// among them.
struct MemoryPlan {
  std::int64_t parameters = 0;  ///< between steps
  std::int64_t gradients = 0;   ///< when the optimizer steps
  std::int64_t optimizer = 0;   ///< moments and the like; not its counts of steps
  std::int64_t gathered = 0;    ///< at most, while units compute one after another
};

/// `state_bytes_per_element`: what the optimizer keeps for each element of a parameter, 8 for Adam with float32. Pure.
/// Source of the formulas: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
/// section 5.
MemoryPlan plan_memory(const ModelPlan& plan, const ModelDescription& model, const ShardingOptions& options,
                       std::int64_t state_bytes_per_element);

}  // namespace accel::sharded
