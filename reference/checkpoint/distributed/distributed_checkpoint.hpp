#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reference/checkpoint/distributed/metadata.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/files/files.hpp"
#include "reference/tree/value.hpp"

/// Reads and writes the folders of torch.distributed.checkpoint: `.metadata`, and `.distcp` files that contain parts of
/// tensors. Any number of ranks reads what any number of ranks wrote.
///
///     const accel::DistributedCheckpoint saved("checkpoint_0/pytorch_model_fsdp_0");
///     const auto rows = saved.load("model.0.weight", {.offsets = {8, 0}, .sizes = {4, 16}});   // only these rows
///
///     accel::write_distributed_checkpoint(files, "exported", accel::Value::Dict{{"model", weights}});
///
/// Reading executes nothing from the files. Thread rule: any number of readers; one writer per folder at a time.
/// Source: torch/distributed/checkpoint/filesystem.py and default_planner.py.
namespace accel {

class MappedFile;

class DistributedCheckpoint {
 public:
  /// Reads `.metadata`. Throws CheckpointError that lists all problems: missing and truncated files, and tensors whose
  /// chunks are missing, overlap or do not fit the tensor.
  explicit DistributedCheckpoint(std::string folder);

  [[nodiscard]] const std::string& folder() const { return folder_; }
  /// Names, dtypes and sizes of all tensors, and the names of all other objects.
  [[nodiscard]] const DistributedMetadata& metadata() const { return metadata_; }

  /// Reads a complete tensor. Throws ArgumentError for an unknown name, CheckpointError that lists the damaged chunks.
  [[nodiscard]] at::Tensor load(const std::string& name) const;
  /// Reads a part, from only the chunks that contain some of it; each is read completely, since its checksum covers all
  /// of it. Throws like the above, and ArgumentError if the box is outside of the tensor.
  [[nodiscard]] at::Tensor load(const std::string& name, const Box& box) const;
  /// Reads an object that is not a tensor. Throws like `load` and `read_torch_file`.
  [[nodiscard]] Value load_object(const std::string& name) const;
  /// Reads all items and returns the nested state dict that was saved, except for those named in `without`.
  [[nodiscard]] Value state_dict(const std::set<std::string>& without = {}) const;

 private:
  [[nodiscard]] at::Tensor load_chunk(const std::string& name, const StoredChunk& chunk) const;

  std::string folder_;
  DistributedMetadata metadata_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

/// Returns all tensors of a folder, complete, by name. Throws CheckpointError that lists all problems.
[[nodiscard]] std::map<std::string, at::Tensor> read_distributed_checkpoint(const std::string& folder);

/// Writes a state dict as a folder that is complete or absent, and replaces an existing one. Nested dicts, and lists
/// that contain dicts or tensors, are divided into items. `types` are the Python types of values, as in
/// `write_torch_file`, which also documents what is thrown.
void write_distributed_checkpoint(Files& files, const std::string& folder, const Value& state_dict,
                                  const TorchFileOptions& types = {});

namespace checkpoint {

[[nodiscard]] bool is_distributed_checkpoint(const std::string& folder);

/// The tensors of a model's checkpoint; each is read when it is loaded. The key around a complete state dict, as in
/// {"model": {...}}, is dropped. Throws CheckpointError like the class, and if there are items that are not tensors.
/// Source: accelerate/utils/fsdp_utils.py, _distributed_checkpoint_to_merged_weights.
[[nodiscard]] std::map<std::string, StoredWeight> distributed_weights(const std::string& folder);

}  // namespace checkpoint
}  // namespace accel
