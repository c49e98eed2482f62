#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/distributed/metadata.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/files/files.hpp"
#include "reference/tree/value.hpp"

/// Writes a distributed checkpoint of which each rank holds a part: a pure plan of all ranks' files, and the writer of
/// one file.
///
///     auto items = checkpoint::items_of(state_dict);
///     const auto plan = checkpoint::plan_distributed_files({described(items)});      // one rank
///     checkpoint::write_items(files, folder + "/" + checkpoint::distributed_file(0), items);
///     write_atomically(files, folder + "/.metadata", checkpoint::write_metadata(plan.metadata));
///
/// Thread rule: any thread.
namespace accel::checkpoint {

/// An item of a state dict, or a box of a tensor.
struct DistributedItem {
  StatePath path = {};
  std::vector<std::int64_t> sizes = {};  ///< of the complete tensor; empty for an object
  Box box = {};                          ///< the part that `value` has; empty for an object
  Value value = {};                      ///< a tensor of the sizes of the box, or an object
};

/// An item without its value.
struct ItemDescription {
  StatePath path = {};
  std::optional<at::ScalarType> dtype = {};  ///< empty for an object
  std::vector<std::int64_t> sizes = {};
  Box box = {};
  std::int64_t length = 0;  ///< bytes in the file
};

/// Divides a state dict into items like PyTorch: into tensors, and the largest objects that contain neither tensors nor
/// dicts.
[[nodiscard]] std::vector<DistributedItem> items_of(const Value& state_dict);

/// Computes how much each item occupies, without reading its elements. Throws ArgumentError if torch.save cannot write
/// an item.
[[nodiscard]] std::vector<ItemDescription> described(const std::vector<DistributedItem>& items,
                                                     const TorchFileOptions& types = {});

struct DistributedPlan {
  /// Per rank: the indices of the items that it writes, in the order of its file. What several ranks hold is written by
  /// the first of them.
  std::vector<std::vector<std::size_t>> items = {};
  DistributedMetadata metadata = {};
};
/// Throws ArgumentError if items at different paths have the same name.
[[nodiscard]] DistributedPlan plan_distributed_files(const std::vector<std::vector<ItemDescription>>& ranks);

/// "__0_0.distcp"
[[nodiscard]] std::string distributed_file(std::size_t rank);
/// Writes the items one after the other, atomically. Throws like write_torch_file.
void write_items(Files& files, const std::string& path, const std::vector<DistributedItem>& items,
                 const TorchFileOptions& types = {});

}  // namespace accel::checkpoint
