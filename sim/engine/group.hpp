#pragma once

#include <memory>
#include <string>
#include <vector>

namespace accel::sim {

struct GroupState;

/// Some ranks that meet under one name.
struct Group {
  std::string name;
  std::vector<int> ranks;  // world ranks, by group rank
  std::shared_ptr<GroupState> state =
      nullptr;  // what its ranks have under way; set by World::group, used by the engine alone

  /// -1 if it is none of them.
  [[nodiscard]] int group_rank_of(int rank) const;
};

}  // namespace accel::sim
