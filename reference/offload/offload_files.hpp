#pragma once

#include <map>
#include <string>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/files.hpp"
#include "reference/core/named_tensors.hpp"

/// Weights on disk as Accelerate's offload folders have them: {name}.dat with the raw elements of each, and index.json.
/// Python reads what is written here, and the other way round; an index may also name tensors of safetensors files.
///
///     accel::offload_state_dict(files, "offload", {{"weight", weight}});
///     const accel::OffloadedWeightsLoader weights({.save_folder = "offload"});
///     weights.load("weight");
///
/// Thread rule: any number of readers; one folder has one writer at a time. Source: accelerate/utils/offload.py.
namespace accel {

/// Where offloaded weights lie, by name.
using OffloadIndex = std::map<std::string, StoredWeight>;

/// Makes the folder and writes the tensors and the index, which keeps what it had of others.
void offload_state_dict(Files& files, const std::string& save_dir, const NamedTensors& state_dict);

/// Writes to the index of a folder where weights lie already: tensors of safetensors files. Weights of other files are
/// written as .dat.
void save_offload_index(Files& files, const std::string& offload_folder, const OffloadIndex& index);

/// Maps each file when a tensor of it is loaded. Throws CheckpointError with all that is wrong: files that are missing
/// or of another size, dtypes that are not known.
OffloadIndex read_offload_index(const std::string& offload_folder);

struct OffloadedWeights {
  std::map<std::string, at::Tensor> state_dict = {};  ///< in memory; comes first
  std::string save_folder = {};
  OffloadIndex index = {};  ///< added to that of the folder
};

/// Weights by name, in memory and on disk.
class OffloadedWeightsLoader {
 public:
  explicit OffloadedWeightsLoader(OffloadedWeights weights);
  [[nodiscard]] bool contains(const std::string& name) const {
    return weights_.state_dict.contains(name) || weights_.index.contains(name);
  }
  /// Of memory, the tensor itself; of a file, a copy. Throws ArgumentError if there is none.
  [[nodiscard]] at::Tensor load(const std::string& name) const;
  [[nodiscard]] std::size_t size() const;

 private:
  OffloadedWeights weights_;
};

}  // namespace accel
