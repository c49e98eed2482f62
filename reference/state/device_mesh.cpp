#include "reference/state/device_mesh.hpp"

#include <algorithm>

#include "reference/mesh/mesh.hpp"

namespace accel {
namespace {

Group own_group(RankContext& context, const RankGroups& groups) {
  if (groups.size() == 1) return context.world;
  Group own;
  for (const auto& ranks : groups) {
    auto group = context.new_group(ranks);
    if (std::find(ranks.begin(), ranks.end(), context.rank) != ranks.end()) own = std::move(group);
  }
  return own;
}

}  // namespace

DeviceMesh::DeviceMesh(RankContext& context, const ParallelismConfig& config) : config_(config) {
  const auto mesh = mesh_of(config);
  std::map<RankGroups, Group> created;
  for (const auto& kind : mesh_group_kinds()) {
    const auto ranks = mesh.groups(kind.axes);
    const bool serves_ddp = context.new_group && (kind.name == "dp_cp" || kind.name == "expert_dp");
    if (ranks.front().size() == 1 && !serves_ddp) continue;
    auto group = created.find(ranks);
    if (group == created.end()) group = created.emplace(ranks, own_group(context, ranks)).first;
    groups_.emplace(kind.name, group->second);
  }
}

const Group& DeviceMesh::operator[](std::string_view name) const {
  static const Group kAlone;
  (void)axes_of(name);  // throws for an unknown name
  const auto group = groups_.find(name);
  return group == groups_.end() ? kAlone : group->second;
}

}  // namespace accel
