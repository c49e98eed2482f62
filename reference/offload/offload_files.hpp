#pragma once

#include <map>
#include <string>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/files/files.hpp"

/// Weights on disk in the format of Accelerate's offload folders: {name}.dat with the raw elements of each tensor, and
/// index.json. Python reads what this writes and vice versa. An index may also name tensors of safetensors files.
///
///     accel::offload_state_dict(files, "offload", {{"weight", weight}});
///     const accel::OffloadedWeightsLoader weights({.save_folder = "offload"});
///     weights.load("weight");
///
/// Thread rule: any number of readers; one writer per folder at a time. Source: accelerate/utils/offload.py.
namespace accel {

/// Where offloaded weights are stored, by name.
using OffloadIndex = std::map<std::string, StoredWeight>;

/// Creates the folder and writes the tensors and the index. Existing entries of other tensors are kept.
void offload_state_dict(Files& files, const std::string& save_dir, const NamedTensors& state_dict);

/// Writes an index that refers to existing safetensors files. Weights in other files are copied to .dat files.
void save_offload_index(Files& files, const std::string& offload_folder, const OffloadIndex& index);

/// Reads an index; a file is only opened when one of its tensors is loaded. Throws CheckpointError, which lists all
/// problems: missing files, files of another size, unknown dtypes.
OffloadIndex read_offload_index(const std::string& offload_folder);

struct OffloadedWeights {
  std::map<std::string, at::Tensor> state_dict = {};  ///< in memory; takes precedence
  std::string save_folder = {};
  OffloadIndex index = {};  ///< merged with the folder's index
};

/// Weights by name, in memory and on disk.
class OffloadedWeightsLoader {
 public:
  explicit OffloadedWeightsLoader(OffloadedWeights weights);
  [[nodiscard]] bool contains(const std::string& name) const {
    return weights_.state_dict.contains(name) || weights_.index.contains(name);
  }
  /// Returns the tensor itself if it is in memory, else a copy from the file. Throws ArgumentError if there is none.
  [[nodiscard]] at::Tensor load(const std::string& name) const;
  [[nodiscard]] std::size_t size() const;

 private:
  OffloadedWeights weights_;
};

}  // namespace accel
