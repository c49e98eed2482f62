#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "reference/mesh/parallelism_config.hpp"

/// The axes of a mesh of ranks. Everything that depends on the axes of a mesh (sizes, process groups, options, files,
/// messages) reads this table.
///
///     for (const auto& axis : accel::mesh_axes()) {
///       if (!axis.shares_batch) num_batches *= config.*axis.size;
///     }
///
/// Thread rule: constants.
namespace accel {

/// Indices in `mesh_axes`, slowest first. Pipelines and experts are additions to Accelerate's.
enum MeshAxis : std::size_t {
  kReplicateAxis,
  kShardAxis,
  kContextAxis,
  kSequenceAxis,
  kTensorAxis,
  kPipelineAxis,
  kExpertAxis
};

/// What the layers of a model hold on ranks that differ only along an axis.
enum class AxisWeights {
  kEqual,     ///< the same weights; FSDP may shard them
  kFeatures,  ///< parts of weights: heads and features
  kStages,    ///< different layers
  kExperts    ///< different experts, and the same other weights
};

struct MeshAxisDescription {
  std::string_view name;         ///< of its process group: mesh["tp"]
  const char* size_name;         ///< of the option
  const char* variable;          ///< of the environment, that a launcher sets
  int ParallelismConfig::*size;  ///< number of ranks
  bool shares_batch;             ///< its ranks read the same samples, or parts of them
  AxisWeights weights;
  bool joins_shards;         ///< FSDP shards one model over its ranks
  bool is_addition = false;  ///< Accelerate lacks it; shown only if its size is above 1

  /// Its ranks hold the same weights and read different samples.
  [[nodiscard]] constexpr bool is_data_parallel() const { return weights == AxisWeights::kEqual && !shares_batch; }
};

inline constexpr std::size_t kNumMeshAxes = 7;
const std::array<MeshAxisDescription, kNumMeshAxes>& mesh_axes();

[[nodiscard]] inline std::string_view name_of(MeshAxis axis) { return mesh_axes()[axis].name; }
/// Throws ArgumentError, which lists all axes, for a name that is none of them.
[[nodiscard]] MeshAxis axis_named(std::string_view name);

}  // namespace accel
