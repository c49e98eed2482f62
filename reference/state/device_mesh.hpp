#pragma once

#include <map>
#include <string>
#include <string_view>

#include "reference/comm/group.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/state/rank_context.hpp"

/// The process groups of a ParallelismConfig, by the names of mesh_group_kinds().
///
///     const accel::DeviceMesh& mesh = accelerator.mesh();
///     mesh["tp"].all_reduce(partial_sums).wait();
///     const int part = mesh["cp"].rank();
///
/// Copies share the groups. Thread rule: the rank's thread. Source: torch/distributed/device_mesh.py.
namespace accel {

class DeviceMesh {
 public:
  /// A mesh of one rank, whose groups do not communicate.
  DeviceMesh() = default;
  /// Every rank creates all groups in one order, also those that it is not a member of. Groups of equal ranks are
  /// created once, and a group of all ranks is `context.world`. "dp_cp" and "expert_dp" are process groups also if they
  /// have one rank, since DDP needs one. Collective.
  DeviceMesh(RankContext& context, const ParallelismConfig& config);

  /// The group of the ranks that differ from this one only along the axes of `name`; without communication if it has
  /// one rank. Throws ArgumentError for an unknown name.
  [[nodiscard]] const Group& operator[](std::string_view name) const;
  [[nodiscard]] const ParallelismConfig& config() const { return config_; }

 private:
  ParallelismConfig config_;
  std::map<std::string, Group, std::less<>> groups_;  // most groups of one rank are absent
};

}  // namespace accel
