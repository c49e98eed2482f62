#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/checkpoint/weights_plan.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/files/files.hpp"

/// Writes and reads a model's weights in one or several files, as `save_model` and `load_checkpoint_in_model` do.
///
///     accel::write_weights(files, "model", state_dict, {.max_shard_bytes = accel::parse_size("5GB")});
///     const auto weights = accel::read_weights("model");
///     for (const auto& [name, weight] : weights) parameter(name).copy_(weight.load());    // one at a time
///
/// Thread rule: any number of readers; one writer per folder at a time.
/// Source: accelerate/accelerator.py, save_model; accelerate/utils/modeling.py, load_checkpoint_in_model.
namespace accel {

/// Plans the files of a model by `plan_weights_files`. Sizes are those of storages. In files of torch.save, tensors
/// that share a storage stay together.
WeightsPlan plan_weights(const NamedTensors& tensors, const WeightsPlanOptions& options);

/// Creates the folder, writes the files and their index, then removes files of an earlier save of the same kind (which
/// Accelerate leaves behind for safetensors). Each file is replaced atomically, but a crash may leave files of both
/// saves. safetensors store a tensor with several names once: returns the omitted names, each with the name that was
/// stored. Throws like `write_safetensors` and `write_torch_file`.
std::map<std::string, std::string> write_weights(Files& files, const std::string& folder, const NamedTensors& tensors,
                                                 const WeightsPlanOptions& options = {});

/// A tensor in a file, which is read on request.
struct StoredWeight {
  std::string file = {};  ///< path of the file
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
  /// Reads only this tensor. Throws CheckpointError if the file is damaged there.
  std::function<at::Tensor()> load;
  /// Reads into an existing tensor of these sizes, without an intermediate copy where possible; null: use `load`.
  std::function<void(const at::Tensor& tensor)> load_directly = nullptr;

  void load_into(const at::Tensor& tensor) const {
    if (load_directly)
      load_directly(tensor);
    else
      tensor.copy_(load());
  }
};

/// Reads weights by name. `path` is a file, an index (.json), or a folder, of which it reads pytorch_model.bin, else
/// model.safetensors, else the only index. Throws CheckpointError that lists all problems: missing or damaged files,
/// and tensors that are not in the file that the index names, or in two files.
std::map<std::string, StoredWeight> read_weights(const std::string& path);

}  // namespace accel
