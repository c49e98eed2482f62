#pragma once

#include "reference/data/loader_core.hpp"
#include "reference/mesh/mesh.hpp"
#include "reference/sharded/flat_parameter.hpp"
#include "reference/state/rank_context.hpp"

/// Process groups by the plans of reference/mesh. Every rank makes every group, in the same order. All are collective.
namespace accel {

[[nodiscard]] RankPlace place_of(const RankContext& context);
[[nodiscard]] DataParallel make_data_parallel(RankContext& context, const DataParallelPlan& plan);
[[nodiscard]] sharded::ShardGroups make_shard_groups(RankContext& context, const ShardGroupPlan& plan);
/// A second group of all ranks.
[[nodiscard]] Group make_group_of_all(RankContext& context);

}  // namespace accel
