#include "sim/engine/group_registry.hpp"

namespace accel::sim {

std::shared_ptr<Group> GroupRegistry::group(const std::string& name, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  auto& group = groups_[name];
  if (!group) {
    group = std::make_shared<Group>(
        Group{.name = name, .ranks = ranks, .state = std::make_shared<GroupState>(ranks.size(), failures_)});
  }
  check_argument(group->ranks == ranks, "group {}: this rank gives {} as members, another gave {}; all must agree",
                 name, describe_ranks(ranks), describe_ranks(group->ranks));
  return group;
}

std::vector<std::shared_ptr<Group>> GroupRegistry::all() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& [name, group] : groups_) groups.push_back(group);
  return groups;
}

}  // namespace accel::sim
