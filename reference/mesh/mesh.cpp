// Rank layouts as arithmetic on row-major indices. Accelerate delegates this to torch's DeviceMesh
// (accelerate/parallelism_config.py, build_device_mesh); the axis order here must be the same, or checkpoints and
// launch scripts would assign ranks differently.
#include "reference/mesh/mesh.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {

Mesh::Mesh(std::vector<int> sizes) : sizes_(std::move(sizes)) {
  check_argument(std::all_of(sizes_.begin(), sizes_.end(), [](int size) { return size >= 1; }),
                 "the mesh has sizes {}; expected 1 or more in every axis", fmt::join(sizes_, " x "));
}

int Mesh::num_ranks() const { return std::accumulate(sizes_.begin(), sizes_.end(), 1, std::multiplies<>()); }

int Mesh::stride(std::size_t axis) const {
  return std::accumulate(sizes_.begin() + static_cast<std::ptrdiff_t>(axis) + 1, sizes_.end(), 1, std::multiplies<>());
}

int Mesh::coordinate(int rank, std::size_t axis) const { return rank / stride(axis) % sizes_.at(axis); }

// Two ranks belong to the same group if they are equal after setting their coordinates along `axes` to 0. That
// rank is the smallest of the group, so the map orders the groups by their first rank.
RankGroups Mesh::groups(const std::vector<std::size_t>& axes) const {
  std::map<int, std::vector<int>> by_first_rank;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    int first = rank;
    for (const auto axis : axes) first -= coordinate(rank, axis) * stride(axis);
    by_first_rank[first].push_back(rank);
  }
  RankGroups groups;
  for (auto& [first, ranks] : by_first_rank) groups.push_back(std::move(ranks));
  return groups;
}

Mesh mesh_of(const ParallelismConfig& config) {
  std::vector<int> sizes;
  for (const auto& axis : mesh_axes()) sizes.push_back(config.*axis.size);
  return Mesh(std::move(sizes));
}

// Source: accelerate/parallelism_config.py, for the names that it has.
const std::vector<MeshGroupKind>& mesh_group_kinds() {
  static const auto kKinds = [] {
    using enum AxisWeights;
    std::vector<MeshGroupKind> kinds;
    for (std::size_t axis = 0; axis < kNumMeshAxes; ++axis)
      kinds.push_back({std::string(mesh_axes()[axis].name), {axis}});
    const auto combine = [&](const char* name, auto&& combines) {
      MeshGroupKind kind{name};
      for (std::size_t axis = 0; axis < kNumMeshAxes; ++axis) {
        if (combines(mesh_axes()[axis])) kind.axes.push_back(axis);
      }
      kinds.push_back(std::move(kind));
    };
    using Axis = MeshAxisDescription;
    combine("dp", [](const Axis& axis) { return !axis.shares_batch; });
    combine("dp_shard_cp", [](const Axis& axis) { return axis.joins_shards; });
    combine("dp_cp", [](const Axis& axis) { return axis.weights == kEqual || axis.weights == kExperts; });
    combine("expert_dp", [](const Axis& axis) { return axis.weights == kEqual; });
    return kinds;
  }();
  return kKinds;
}

bool serves_ddp(std::string_view kind) { return kind == "dp_cp" || kind == "expert_dp"; }

std::vector<std::pair<std::string, RankGroups>> groups_to_create(const Mesh& mesh) {
  std::vector<std::pair<std::string, RankGroups>> created;
  for (const auto& kind : mesh_group_kinds()) {
    auto groups = mesh.groups(kind.axes);
    const bool is_needed = groups.front().size() > 1 || serves_ddp(kind.name);
    const bool exists = groups.size() == 1 || std::any_of(created.begin(), created.end(),
                                                          [&](const auto& other) { return other.second == groups; });
    if (is_needed && !exists) created.emplace_back(kind.name, std::move(groups));
  }
  return created;
}

const std::vector<std::size_t>& axes_of(std::string_view name) {
  const auto& kinds = mesh_group_kinds();
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& known) { return known.name == name; });
  std::vector<std::string_view> names;
  for (const auto& known : kinds) names.emplace_back(known.name);
  check_argument(kind != kinds.end(), "mesh: there is no group '{}'; expected one of: {}", name,
                 fmt::join(names, ", "));
  return kind->axes;
}

void check_mesh(const ParallelismConfig& config, int world_size) {
  std::vector<std::string> problems;
  std::vector<std::string_view> names;
  std::vector<int> sizes;
  for (const auto& axis : mesh_axes()) {
    const auto size = config.*axis.size;
    if (size < 1) problems.push_back(fmt::format("{}: expected 1 or more, got {}", axis.size_name, size));
    if (axis.is_addition && size <= 1) continue;
    names.push_back(axis.name);
    sizes.push_back(size);
  }
  const auto size = config.total_size();
  if (problems.empty() && size != world_size) {
    problems.push_back(fmt::format("the mesh has {} = {} ranks ({}); expected {}, the world size",
                                   fmt::join(sizes, " x "), size, fmt::join(names, ", "), world_size));
  }
  if (config.cp_enabled() && config.sp_enabled())
    problems.emplace_back("cp_size and sp_size exclude each other; set one of them to 1");
  check_config(problems.empty(), "parallelism_config: {}", listed(problems, "; "));
}

DataParallelPlan plan_data_parallel(const std::optional<ParallelismConfig>& config, RankPlace place) {
  if (!config || config->non_data_parallel_size() == 1) return {.size = place.world_size, .rank = place.rank};
  const auto groups = mesh_of(*config).groups(axes_of("dp"));
  for (const auto& ranks : groups) {
    const auto own = std::find(ranks.begin(), ranks.end(), place.rank);
    if (own != ranks.end())
      return {.size = static_cast<int>(ranks.size()), .rank = static_cast<int>(own - ranks.begin())};
  }
  throw InternalError("a rank belongs to no data-parallel group");
}

// The context and sequence axes take part in sharding, as in Accelerate's dp_shard_cp dimension: these ranks hold
// equal parameters. The tensor and expert axes do not, because their ranks hold different slices.
ShardGroupPlan plan_shard_groups(const std::optional<ParallelismConfig>& config, RankPlace place, bool hybrid) {
  const auto sizes = config.value_or(ParallelismConfig{.dp_shard_size = place.world_size});
  int num_ranks = 1, num_sharding = 1, num_peers = 1;
  for (const auto& axis : mesh_axes()) {
    const auto size = sizes.*axis.size;
    (axis.weights == AxisWeights::kEqual ? num_ranks : num_peers) *= size;
    if (axis.joins_shards) num_sharding *= size;
  }
  const bool has_sizes = config && num_ranks > 1;
  const int of_machine = std::max(1, place.local_world_size / num_peers);
  const int num_shards = has_sizes ? num_sharding : hybrid ? of_machine : num_ranks;
  check_config(num_ranks % num_shards == 0,
               "fsdp_plugin: {} ranks do not divide into shard groups of {}; expected a multiple of {}; start equally "
               "many ranks on each machine",
               num_ranks, num_shards, num_shards);

  const Mesh mesh({num_ranks / num_shards, num_shards, num_peers});
  constexpr std::size_t kReplica = 0, kShard = 1, kPeer = 2;
  ShardGroupPlan plan{.peers = std::vector<ShardGroupPlan::Peers>(num_peers),
                      .peer = mesh.coordinate(place.rank, kPeer)};
  for (auto& ranks : mesh.groups({kShard}))
    plan.peers[mesh.coordinate(ranks.front(), kPeer)].shards.push_back(std::move(ranks));
  if (mesh.size(kReplica) == 1) return plan;
  for (auto& ranks : mesh.groups({kReplica}))
    plan.peers[mesh.coordinate(ranks.front(), kPeer)].replicas.push_back(std::move(ranks));
  return plan;
}

}  // namespace accel
