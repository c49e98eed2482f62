#include "reference/accelerator/mesh_groups.hpp"

#include <algorithm>
#include <numeric>

namespace accel {
namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

RankPlace place_of(const RankContext& context) {
  return {.rank = context.rank, .world_size = context.world_size, .local_world_size = context.local_world_size};
}

sharded::ShardGroups make_shard_groups(RankContext& context, const ShardGroupPlan& plan,
                                       const ParallelismConfig& mesh) {
  // A process without a backend cannot create groups and needs none: a shard group of one rank has no communication.
  if (context.world_size == 1 && !context.new_group) return {};
  sharded::ShardGroups groups{.peer = plan.peer};
  for (const auto& peers : plan.peers) {
    for (const auto& ranks : peers.shards) {
      // Two groups over the same ranks: parameter gathers and gradient reductions overlap in backward. In one group
      // they would queue behind each other, and their order would depend on the timing of autograd hooks.
      auto gathers = context.new_group(ranks), reductions = context.new_group(ranks);
      if (!contains(ranks, context.rank)) continue;
      groups.gathers = std::move(gathers);
      groups.reductions = std::move(reductions);
    }
    for (const auto& ranks : peers.replicas) {
      auto replicas = context.new_group(ranks);
      if (contains(ranks, context.rank)) groups.replicas = std::move(replicas);
    }
  }
  if (!mesh.ep_enabled()) return groups;
  std::vector<std::size_t> unsharded{kExpertAxis};
  for (std::size_t axis = 0; axis < kNumMeshAxes; ++axis) {
    if (mesh_axes()[axis].is_data_parallel() && !mesh_axes()[axis].joins_shards) unsharded.push_back(axis);
  }
  for (const auto& ranks : mesh_of(mesh).groups(unsharded)) {
    auto replicas = context.new_group(ranks);
    if (contains(ranks, context.rank)) groups.replicas_except_experts = std::move(replicas);
  }
  return groups;
}

Group make_group_of_all(RankContext& context) {
  std::vector<int> ranks(context.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return context.new_group(ranks);
}

}  // namespace accel
