#pragma once

#include <string>
#include <vector>

#include "reference/training_state/shard_files.hpp"
#include "reference/training_state/state_files.hpp"

/// Sharded state in the form of torch.distributed.checkpoint, as Accelerate saves it with SHARDED_STATE_DICT: the model
/// as {"model": {...}}, an optimizer as {"optimizer": {"state": {...}, "param_groups": [...]}}.
///
/// Thread rule: the rank's thread. Source: accelerate/utils/fsdp_utils.py, save_fsdp_model and save_fsdp_optimizer.
namespace accel::checkpoint {

/// Adds this rank's files of a model. A shared parameter is saved under all of its names. Collective.
void add_distributed_model(std::vector<StateFile>& files, std::size_t index, const ParallelModel& model,
                           const std::vector<TensorPart>& pieces, RankContext& context);
/// Adds this rank's files of an optimizer: of its `pieces`, and of the `remaining` state. Collective.
void add_distributed_optimizer(std::vector<StateFile>& files, std::size_t index, const Value& remaining,
                               const std::vector<TensorPart>& pieces, RankContext& context);

/// Reads the folder of an optimizer. Tensors of parameters are read when they are loaded.
[[nodiscard]] SavedOptimizer distributed_optimizer(const std::string& folder);

}  // namespace accel::checkpoint
