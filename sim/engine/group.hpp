#pragma once

#include <memory>
#include <string>
#include <vector>

namespace accel::sim {

struct GroupState;

/// A process group: the ranks that take part in its collectives.
struct EngineGroup {
  std::string name;
  std::vector<int> ranks;                       // world ranks, by group rank
  std::shared_ptr<GroupState> state = nullptr;  // open meetings; set by World::group, used only by the engine

  /// Returns -1 if `rank` is not a member.
  [[nodiscard]] int group_rank_of(int rank) const;
};

}  // namespace accel::sim
