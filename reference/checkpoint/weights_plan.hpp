#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Decides which tensor of a model goes into which file of `save_model`.
///
///     const auto plan = plan_weights_files({{.name = "weight", .num_bytes = 64}, {.name = "bias", .num_bytes = 16}},
///                                          {.max_shard_bytes = 60});
///     plan.files[0].name == "model-00001-of-00002.safetensors"
///
/// Thread rule: pure functions.
/// Source: huggingface_hub/serialization/_base.py, split_state_dict_into_shards_factory.
namespace accel {

struct SavedTensor {
  std::string name = {};
  std::int64_t num_bytes = 0;
  /// Tensors with the same number share memory: they go into one file and count once.
  std::optional<std::size_t> memory = {};
};

struct WeightsPlanOptions {
  std::int64_t max_shard_bytes = 10'000'000'000;
  bool safe_serialization = true;  ///< safetensors; else files of torch.save
};

struct WeightsPlan {
  struct File {
    std::string name = {};
    std::vector<std::string> tensors = {};
  };
  std::vector<File> files = {};
  std::int64_t total_bytes = 0;
  /// The index of several files; empty if there is one file.
  std::string index_file = {};
  [[nodiscard]] bool is_sharded() const { return files.size() > 1; }
};

/// Fills files in the order of the tensors. A tensor larger than the limit gets its own file. Without tensors there is
/// one empty file, where Accelerate writes none. Throws ArgumentError if `max_shard_bytes` is not positive.
WeightsPlan plan_weights_files(const std::vector<SavedTensor>& tensors, const WeightsPlanOptions& options = {});

/// Parses a size such as "10GB": a number and TB, GB, MB or KB, in powers of 1000. Throws ArgumentError for other
/// texts.
std::int64_t parse_size(std::string_view text);

/// "model.safetensors" or "pytorch_model.bin".
std::string weights_file_name(bool safe_serialization);
/// "model.safetensors.index.json" or "pytorch_model.bin.index.json".
std::string weights_index_name(bool safe_serialization);
/// A name for a shard while the file of that name is in use: "model-00001-of-00002.new1.safetensors". `spare` >= 1.
std::string spare_weights_name(const std::string& name, int spare);
/// Whether a save of this kind may create a file of this name; includes the index and spare names.
bool is_weights_file(std::string_view name, bool safe_serialization);

// The index of the files of a model: which tensor is in which file.
//
//     const auto index = read_weights_index(bytes, "model.safetensors.index.json");
//     index.at("weight") == "model-00001-of-00002.safetensors"
//
// Thread rule: pure functions.

using WeightMap = std::map<std::string, std::string>;  // tensor to file

/// Returns the text of an index, equal to Accelerate's byte for byte: Python's JSON, sorted, indented by two.
/// Throws ArgumentError for a name that is not UTF-8.
std::string weights_index(const WeightMap& weight_map, std::int64_t total_bytes);
/// Parses an index. Throws CheckpointError, beginning with `path`, that lists all entries that are not file names.
WeightMap read_weights_index(std::string_view bytes, const std::string& path);

}  // namespace accel
