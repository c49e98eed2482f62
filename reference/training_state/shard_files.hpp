#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/training_state/state_files.hpp"

/// What is sharded, in files: pieces of tensors, of which a file has one rank's.
///
/// Each piece is a one-dimensional tensor under its name; the metadata has, under the same name, `{"begin": 6, "sizes":
/// [3, 4]}`: where it begins among the whole tensor's elements, row by row, and the whole's sizes. Thread rule: pure
/// functions, and readers of files.
namespace accel::checkpoint {

[[nodiscard]] StateFile file_of_pieces(std::string name, const std::vector<sharded::ShardPiece>& pieces);

/// "pytorch_model_fsdp_0", "optimizer_0": folders of files rank{r}.safetensors.
[[nodiscard]] std::string folder_of_shards(const std::string& what, std::size_t index);
[[nodiscard]] std::string file_of_shard(const std::string& what, std::size_t index, int rank);

/// Whole tensors by name, from the files of any number of ranks; each is put together when it is loaded. Throws
/// CheckpointError with all that is not whole, given twice, or of sizes that differ.
[[nodiscard]] std::map<std::string, StoredWeight> read_shards(const std::string& folder);

/// How an optimizer's state of models that are sharded is written.
enum class OptimizerForm { kWhole, kPieces };

/// The state of an optimizer whose parameters may be divided over ranks.
///
/// kWhole: each tensor whole, on rank 0; others' dicts are empty of tensors. kPieces: without the tensors that are
/// divided, which go to `pieces` under "name/entry". Collective for kWhole.
[[nodiscard]] Value state_dict_of(const AcceleratedOptimizer& optimizer, const TrainingState& state,
                                  RankContext& context, OptimizerForm form, std::vector<sharded::ShardPiece>& pieces);

/// The other way: this rank's parts of a whole state; tensors of `shards`, if there are some, in the place of those
/// that it lacks.
[[nodiscard]] Value parts_of(const Value& whole, const std::map<std::string, StoredWeight>& shards,
                             const AcceleratedOptimizer& optimizer, const TrainingState& state);

}  // namespace accel::checkpoint
