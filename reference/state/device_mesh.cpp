#include "reference/state/device_mesh.hpp"

#include <algorithm>

#include "reference/mesh/mesh.hpp"

namespace accel {

// A process without a backend cannot create groups and needs none.
DeviceMesh::DeviceMesh(RankContext& context, const ParallelismConfig& config) : config_(config) {
  const auto mesh = mesh_of(config);
  std::map<RankGroups, Group> created;
  if (context.new_group) {
    for (const auto& [kind, groups] : groups_to_create(mesh)) {
      for (const auto& ranks : groups) {
        auto group = context.new_group(ranks);
        if (std::find(ranks.begin(), ranks.end(), context.rank) != ranks.end()) created[groups] = std::move(group);
      }
    }
  }
  for (const auto& kind : mesh_group_kinds()) {
    const auto groups = mesh.groups(kind.axes);
    const auto own = created.find(groups);
    if (own != created.end())
      groups_.emplace(kind.name, own->second);
    else if (groups.size() == 1)
      groups_.emplace(kind.name, context.world);
  }
}

const Group& DeviceMesh::operator[](std::string_view name) const {
  static const Group kAlone;
  (void)axes_of(name);  // throws for an unknown name
  const auto group = groups_.find(name);
  return group == groups_.end() ? kAlone : group->second;
}

}  // namespace accel
