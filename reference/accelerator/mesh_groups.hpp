#pragma once

#include "reference/mesh/mesh.hpp"
#include "reference/sharded/flat_parameter.hpp"
#include "reference/state/rank_context.hpp"

/// Creates process groups from the plans of reference/mesh that state/device_mesh.hpp does not name. Every rank creates
/// every group, in the same order, also the groups that it is not a member of. All functions that create groups are
/// collective.
namespace accel {

[[nodiscard]] RankPlace place_of(const RankContext& context);
/// `mesh`: has expert-parallel ranks or not.
[[nodiscard]] sharded::ShardGroups make_shard_groups(RankContext& context, const ShardGroupPlan& plan,
                                                     const ParallelismConfig& mesh);
/// Creates a second group of all ranks, separate from `context.world`.
[[nodiscard]] Group make_group_of_all(RankContext& context);

}  // namespace accel
