#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reference/checkpoint/distributed/box_plan.hpp"

/// The `.metadata` file of torch.distributed.checkpoint: which item of a state dict is where in the folder.
///
///     const auto metadata = checkpoint::read_metadata(bytes, "model/.metadata");
///     metadata.tensors.at("model.weight").chunks[0].place.file == "__0_0.distcp"
///
/// Thread rule: pure functions. Source: torch/distributed/checkpoint/metadata.py.
namespace accel {

/// The bytes of an item: an archive of torch.save in a file of the folder.
struct StoredPlace {
  std::string file = {};
  std::int64_t offset = 0, length = 0;
};

struct StoredChunk {
  Box box = {};
  StoredPlace place = {};
};

/// A tensor of a distributed checkpoint. The chunks contain every element once; empty chunks are left out.
struct DistributedTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
  std::vector<StoredChunk> chunks = {};
};

/// The keys of dicts and the indices of lists that lead to an item of the state dict.
using StatePath = std::vector<std::variant<std::string, std::int64_t>>;

/// Items by name.
struct DistributedMetadata {
  std::map<std::string, DistributedTensor> tensors = {};
  std::map<std::string, StoredPlace> objects = {};  ///< items that are not tensors
  std::map<std::string, StatePath> paths = {};      ///< of tensors and objects
};

namespace checkpoint {

/// The name of an item: its path, joined by dots. Without the first `skipped` steps.
[[nodiscard]] std::string item_name(const StatePath& path, std::size_t skipped = 0);

inline constexpr const char* kMetadataFile = ".metadata";

/// Reads the pickle without executing anything. Throws CheckpointError, beginning with `path`, that lists all tensors
/// with missing, overlapping or misplaced chunks, and all items without a place.
[[nodiscard]] DistributedMetadata read_metadata(std::string_view bytes, const std::string& path);
/// Returns the pickle, which torch.distributed.checkpoint reads.
[[nodiscard]] std::string write_metadata(const DistributedMetadata& metadata);

}  // namespace checkpoint
}  // namespace accel
