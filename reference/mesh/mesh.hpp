#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/mesh/axes.hpp"
#include "reference/mesh/parallelism_config.hpp"

/// Layout of ranks: the process groups of a ParallelismConfig, as lists of ranks. Pure functions without tensors or
/// communication; state/device_mesh.hpp creates process groups from them.
///
///     const Mesh mesh = mesh_of({.dp_replicate_size = 2, .tp_size = 4});
///     mesh.groups(axes_of("tp"));                          // {0, 1, 2, 3}, {4, 5, 6, 7}
///     mesh.groups(axes_of("dp"));                          // {0, 4}, {1, 5}, {2, 6}, {3, 7}
///
/// Thread rule: values. Source: accelerate/parallelism_config.py.
namespace accel {

/// The ranks of each group, in ascending order.
using RankGroups = std::vector<std::vector<int>>;

/// A grid of ranks in row-major order: the last axis varies fastest.
class Mesh {
 public:
  /// Throws ArgumentError if a size is less than 1.
  explicit Mesh(std::vector<int> sizes);

  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] int size(std::size_t axis) const { return sizes_.at(axis); }
  /// Index of a rank along one axis.
  [[nodiscard]] int coordinate(int rank, std::size_t axis) const;
  /// Returns the groups of ranks that differ only along these axes. Every rank is in exactly one group. Groups are
  /// ordered by their first rank.
  [[nodiscard]] RankGroups groups(const std::vector<std::size_t>& axes) const;

 private:
  [[nodiscard]] int stride(std::size_t axis) const;
  std::vector<int> sizes_;
};

/// The mesh whose axes are those of `mesh_axes`.
[[nodiscard]] Mesh mesh_of(const ParallelismConfig& config);

/// A kind of process group: its ranks differ only along `axes`.
struct MeshGroupKind {
  std::string name = {};
  std::vector<std::size_t> axes = {};
};
/// All kinds: each axis of `mesh_axes`, by its name, and these, which combine axes:
///
/// | name | its ranks |
/// |---|---|
/// | "dp" | read different samples |
/// | "dp_shard_cp" | shard one model |
/// | "dp_cp" | average the gradients of all parameters but those of experts |
/// | "expert_dp" | hold equal experts |
const std::vector<MeshGroupKind>& mesh_group_kinds();
/// The groups of a mesh that a program creates, in this order: those that have several ranks or serve DDP, but not all
/// ranks, which are the world. Each list of groups is created once, for the first kind that has it.
[[nodiscard]] std::vector<std::pair<std::string, RankGroups>> groups_to_create(const Mesh& mesh);
/// Whether DDP averages over groups of this kind. It needs a process group also for one rank.
[[nodiscard]] bool serves_ddp(std::string_view kind);
/// Throws ArgumentError, which lists all names, for a name that is none of them.
const std::vector<std::size_t>& axes_of(std::string_view name);

/// Throws ConfigError, which lists all problems, if the config does not describe a mesh of `world_size` ranks.
void check_mesh(const ParallelismConfig& config, int world_size);

/// The position of a rank in the world, known before a mesh exists.
struct RankPlace {
  int rank = 0, world_size = 1;
  int local_world_size = 1;  ///< number of ranks on this machine
};

/// The ranks that read different samples: number of different batches per step, and the index of this rank's batch.
struct DataParallelPlan {
  int size = 1, rank = 0;
};
[[nodiscard]] DataParallelPlan plan_data_parallel(const std::optional<ParallelismConfig>& config, RankPlace place);

/// Groups of ranks that shard one model, and groups of ranks that hold equal shards.
///
/// Tensor-parallel ranks hold different slices of the model, so each one shards its slice with the ranks at the same
/// index of the other tensor-parallel groups. Ranks that share a batch by parts of its sequence shard together.
struct ShardGroupPlan {
  /// Groups of the ranks at one index of the tensor-parallel groups.
  struct Peers {
    RankGroups shards = {};    ///< each group holds one complete model
    RankGroups replicas = {};  ///< ranks with equal shards; empty without replication
  };
  std::vector<Peers> peers = {};
  int peer = 0;  ///< this rank's index in `peers`
};
/// `hybrid`: if the config has no sizes, shards over the ranks of a machine and replicates over machines.
/// Throws ConfigError if the ranks do not divide into groups of that size.
[[nodiscard]] ShardGroupPlan plan_shard_groups(const std::optional<ParallelismConfig>& config, RankPlace place,
                                               bool hybrid);

}  // namespace accel
