#pragma once

#include "sim/predict/collective_times.hpp"
#include "sim/predict/memory_account.hpp"

namespace accel::predict {

/// Parameters that one GPU holds of a stage, before they are sharded over data parallel ranks.
struct StageParameters {
  double dense = 0, experts = 0;
  double largest_unit = 0;  ///< of a layer, or of embedding and head

  [[nodiscard]] double sum() const { return dense + experts; }
};

[[nodiscard]] StageParameters stage_parameters(const TrainingRun& run, const StageShare& stage);
/// Ranks among which sharded state is divided, and with which it is summed. Used for time and memory.
struct ShardGroups {
  RankGroup dense, experts;          ///< that share the state
  RankGroup all_dense, all_experts;  ///< that compute gradients of the same parameters
  RankGroup replicas;                ///< of the shards of dense parameters, with zero_group
};
[[nodiscard]] ShardGroups shard_groups(const TrainingRun& run);

/// Those of one layer, the mean of all.
[[nodiscard]] StageParameters layer_parameters(const TrainingRun& run);

}  // namespace accel::predict
