#include "reference/accelerator/accelerator.hpp"

#include "reference/accelerator/mesh_groups.hpp"

namespace accel {

Accelerator::Accelerator(AcceleratorOptions options) : Accelerator(std::move(options), current_rank()) {}

Accelerator::Accelerator(AcceleratorOptions options, RankContext& context)
    : AcceleratorState(std::move(options), context) {
  join_data_parallel_group();
  warn_of_ignored_deepspeed_keys();
  if (*options_.debug && use_distributed()) debug_group_ = make_group_of_all(*context_);
}

}  // namespace accel
