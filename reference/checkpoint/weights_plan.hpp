#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Which tensor of a model goes into which file, as `save_model` has it.
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
  /// Tensors of one memory go into one file, and count once.
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
  /// The index beside several files; empty if there is one file.
  std::string index_file = {};
  [[nodiscard]] bool is_sharded() const { return files.size() > 1; }
};

/// Filled in order; a tensor larger than a file may be has one of its own. One file, also for no tensor at all
/// (Accelerate then writes none). Throws ArgumentError if `max_shard_bytes` is not positive.
WeightsPlan plan_weights_files(const std::vector<SavedTensor>& tensors, const WeightsPlanOptions& options = {});

/// Bytes of "10GB": a number and TB, GB, MB or KB, in powers of 1000. Throws ArgumentError if it is none.
std::int64_t parse_size(std::string_view text);

/// "model.safetensors" or "pytorch_model.bin".
std::string weights_file_name(bool safe_serialization);
/// "model.safetensors.index.json" or "pytorch_model.bin.index.json".
std::string weights_index_name(bool safe_serialization);
/// Whether a file is one of those that plans of this kind name, the index among them.
bool is_weights_file(std::string_view name, bool safe_serialization);

// The index beside the files of a model: which tensor lies in which.
//
//     const auto index = read_weights_index(bytes, "model.safetensors.index.json");
//     index.at("weight") == "model-00001-of-00002.safetensors"
//
// Thread rule: pure functions.

using WeightMap = std::map<std::string, std::string>;  // tensor to file

/// Byte for byte what Accelerate writes: Python's JSON, sorted, indented by two.
/// Throws ArgumentError for a name that is no UTF-8.
std::string weights_index(const WeightMap& weight_map, std::int64_t total_bytes);
/// Throws CheckpointError that begins with `path`, and tells of all entries that are no file beside the index.
WeightMap read_weights_index(std::string_view bytes, const std::string& path);

}  // namespace accel
