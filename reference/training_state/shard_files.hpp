#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/training_state/state_files.hpp"

/// Files of sharded state in this library's own form, as LOCAL_STATE_DICT writes them and as earlier snapshots
/// wrote them for SHARDED_STATE_DICT too. Each file holds one rank's pieces of tensors.
///
/// A piece is a one-dimensional tensor under the name of the complete tensor. The file's metadata stores its place
/// under the same name: `{"begin": 6, "sizes": [3, 4]}` is the offset of the first element in the complete tensor, row
/// by row, and the sizes of the complete tensor. Thread rule: any thread, except for the functions that are collective.
namespace accel::checkpoint {

[[nodiscard]] StateFile file_of_pieces(std::string name, const std::vector<TensorPart>& pieces);

/// Returns "pytorch_model_fsdp_0", "optimizer_0" ...: folders that contain files rank{r}.safetensors.
[[nodiscard]] std::string folder_of_shards(const std::string& what, std::size_t index);
[[nodiscard]] std::string file_of_shard(const std::string& what, std::size_t index, int rank);

/// Reads the files of any number of ranks and returns complete tensors by name; each is assembled when it is loaded.
/// Throws CheckpointError that lists all tensors with missing or overlapping pieces, or with contradictory sizes.
[[nodiscard]] std::map<std::string, StoredWeight> read_shards(const std::string& folder);

/// The division of a parameter of a prepared model or a registered module over ranks; null if it is complete.
[[nodiscard]] const DividedParameter* division_of(const at::Tensor& parameter, const TrainingState& state);

/// How the optimizer state of sharded models is written: complete, or in pieces.
enum class OptimizerForm { kWhole, kPieces };

/// Returns the state of an optimizer whose parameters may be sharded.
///
/// kWhole: complete tensors on rank 0; the dicts of other ranks lack the sharded tensors. kPieces: sharded tensors are
/// moved to `pieces` under "name/entry". Collective for kWhole.
[[nodiscard]] Value state_dict_of(const torch::optim::Optimizer& optimizer, const TrainingState& state,
                                  RankContext& context, OptimizerForm form, std::vector<TensorPart>& pieces);

/// The reverse: returns this rank's parts of a complete state. `shards` provides the tensors that the state lacks.
[[nodiscard]] Value parts_of(const Value& whole, const std::map<std::string, StoredWeight>& shards,
                             const torch::optim::Optimizer& optimizer, const TrainingState& state);

}  // namespace accel::checkpoint
