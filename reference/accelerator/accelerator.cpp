#include "reference/accelerator/accelerator.hpp"

#include "reference/accelerator/mesh_groups.hpp"

namespace accel {

Accelerator::Accelerator(AcceleratorOptions options) : Accelerator(std::move(options), current_rank()) {}

// The order is the same on every rank, since group creation is collective. The debug group is separate from the user's
// groups: its checks must not shift the sequence numbers of the collectives that the program itself makes.
Accelerator::Accelerator(AcceleratorOptions options, RankContext& context)
    : AcceleratorBase(std::move(options), context) {
  join_mesh();
  warn_of_plugin();
  if (*settings().debug && use_distributed()) debug_group_ = make_group_of_all(*context_);
}

}  // namespace accel
