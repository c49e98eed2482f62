#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "reference/config/options.hpp"

/// Which rank is where: the process groups that a ParallelismConfig needs, as lists of ranks. Pure functions without
/// tensors and communication; accelerator/mesh_groups.hpp makes process groups from them.
///
///     const Mesh mesh = mesh_of({.dp_replicate_size = 2, .tp_size = 4});
///     mesh.groups({kTensorAxis});                          // {0, 1, 2, 3}, {4, 5, 6, 7}
///     mesh.groups({kReplicateAxis, kShardAxis});           // {0, 4}, {1, 5}, {2, 6}, {3, 7}
///
/// Thread rule: values. Source: accelerate/parallelism_config.py.
namespace accel {

/// The ranks of each group, in ascending order.
using RankGroups = std::vector<std::vector<int>>;

/// A grid of ranks in row-major order: the last axis is the fastest.
class Mesh {
 public:
  /// Throws ArgumentError if a size is less than 1.
  explicit Mesh(std::vector<int> sizes);

  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] int size(std::size_t axis) const { return sizes_.at(axis); }
  /// Index of a rank along one axis.
  [[nodiscard]] int coordinate(int rank, std::size_t axis) const;
  /// The ranks that differ in these axes only: every rank is in exactly one group. Groups are ordered by their first
  /// rank.
  [[nodiscard]] RankGroups groups(const std::vector<std::size_t>& axes) const;

 private:
  [[nodiscard]] int stride(std::size_t axis) const;
  std::vector<int> sizes_;
};

/// Axes of `mesh_of`, the slowest first.
enum MeshAxis : std::size_t { kReplicateAxis, kShardAxis, kContextAxis, kSequenceAxis, kTensorAxis };
[[nodiscard]] Mesh mesh_of(const ParallelismConfig& config);

/// Throws ConfigError, with all problems, if the config is no mesh of `world_size` ranks.
void check_mesh(const ParallelismConfig& config, int world_size);

/// What a rank knows of its place before there is a mesh.
struct RankPlace {
  int rank = 0, world_size = 1;
  int local_world_size = 1;  ///< ranks of this machine
};

/// The ranks that read different samples.
struct DataParallelPlan {
  int size = 1, rank = 0;  ///< number of different batches per step, and which of them this rank reads
  RankGroups groups = {};  ///< each has one rank per batch; empty: the world is the only group
};
[[nodiscard]] DataParallelPlan plan_data_parallel(const std::optional<ParallelismConfig>& config, RankPlace place);

/// The ranks that shard one model, and those that hold equal shards.
///
/// Tensor-parallel ranks hold different slices of the model, so each shards it with the ranks at its place in the other
/// tensor-parallel groups. Ranks that share a batch by parts of its sequence shard it together.
struct ShardGroupPlan {
  /// For the ranks at one place of the tensor-parallel groups.
  struct Peers {
    RankGroups shards = {};    ///< together each group has one complete model
    RankGroups replicas = {};  ///< ranks with equal shards; empty without replication
  };
  std::vector<Peers> peers = {};
  int peer = 0;  ///< this rank's index in `peers`
};
/// `hybrid`: without sizes in the config a model is sharded over the ranks of a machine and replicated over machines.
/// Throws ConfigError if the ranks do not divide into groups of that size.
[[nodiscard]] ShardGroupPlan plan_shard_groups(const std::optional<ParallelismConfig>& config, RankPlace place,
                                               bool hybrid);

}  // namespace accel
