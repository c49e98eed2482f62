#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/checkpoint/weights_plan.hpp"
#include "reference/core/files.hpp"
#include "reference/core/named_tensors.hpp"

/// A model's weights in one file or several, as `save_model` writes and `load_checkpoint_in_model` reads them.
///
///     accel::write_weights(files, "model", state_dict, {.max_shard_bytes = accel::parse_size("5GB")});
///     const auto weights = accel::read_weights("model");
///     for (const auto& [name, weight] : weights) parameter(name).copy_(weight.load());    // one at a time
///
/// Thread rule: any number of readers; one folder has one writer at a time.
/// Source: accelerate/accelerator.py, save_model; accelerate/utils/modeling.py, load_checkpoint_in_model.
namespace accel {

/// What lies in files as `plan_weights_files` has it: sizes are those of storages, and in files of torch.save tensors
/// that share one stay together.
WeightsPlan plan_weights(const NamedTensors& tensors, const WeightsPlanOptions& options);

/// Makes the folder, writes the files and their index, then removes what an earlier save of the same kind left beside
/// them (of safetensors, Accelerate leaves it). Each file is replaced whole; a power loss on the way may leave some
/// files of either save. Of tensors that are the same, safetensors have the first: their names are returned, each with
/// the one that stands for it. Throws as `write_safetensors` and `write_torch_file`.
std::map<std::string, std::string> write_weights(Files& files, const std::string& folder, const NamedTensors& tensors,
                                                 const WeightsPlanOptions& options = {});

/// A tensor in a file.
struct StoredWeight {
  std::string file = {};  ///< its path
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
  /// A copy in memory, and nothing else of the file. Throws CheckpointError if the file is damaged there.
  std::function<at::Tensor()> load;
  /// The same into a tensor of these sizes, with no copy on the way where there need be none; null: by `load`.
  std::function<void(const at::Tensor& tensor)> load_directly = nullptr;

  void load_into(const at::Tensor& tensor) const {
    if (load_directly)
      load_directly(tensor);
    else
      tensor.copy_(load());
  }
};

/// By name. `path` is a file, an index (.json), or a folder: its pytorch_model.bin, else its model.safetensors, else
/// its one index. Throws CheckpointError with all that is wrong: files that are missing or damaged, tensors that are
/// not where the index says, or in two files.
std::map<std::string, StoredWeight> read_weights(const std::string& path);

}  // namespace accel
