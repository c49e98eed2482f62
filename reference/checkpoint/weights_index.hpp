#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

/// The index beside the files of a model: which tensor lies in which.
///
///     const auto index = read_weights_index(bytes, "model.safetensors.index.json");
///     index.at("weight") == "model-00001-of-00002.safetensors"
///
/// Thread rule: pure functions.
namespace accel {

using WeightMap = std::map<std::string, std::string>;  // tensor to file

/// Byte for byte what Accelerate writes: Python's JSON, sorted, indented by two.
/// Throws ArgumentError for a name that is no UTF-8.
std::string weights_index(const WeightMap& weight_map, std::int64_t total_bytes);
/// Throws CheckpointError that begins with `path`, and tells of all entries that are no file beside the index.
WeightMap read_weights_index(std::string_view bytes, const std::string& path);

}  // namespace accel
