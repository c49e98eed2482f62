#include "reference/checkpoint/distributed/distributed_files.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/recording_files.hpp"
#include "reference/checkpoint/torch_archive.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using namespace checkpoint;

// Whether an object is one item. Source: torch/distributed/checkpoint/_traverse.py, traverse_state_dict.
bool is_one_item(const Value& value) {
  if (value.is<Value::Dict>()) return false;
  if (!value.is<Value::List>()) return true;
  const auto& list = value.as<Value::List>();
  return std::all_of(list.begin(), list.end(), [](const Value& entry) {
    return !entry.is<at::Tensor>() && !entry.is<Value::Dict>() && is_one_item(entry);
  });
}

void add_items(std::vector<DistributedItem>& items, const StatePath& path, const Value& value) {
  const auto add = [&](std::variant<std::string, std::int64_t> step, const Value& entry) {
    auto place = path;
    place.push_back(std::move(step));
    add_items(items, place, entry);
  };
  if (value.is<Value::Dict>()) {
    for (const auto& [key, entry] : value.as<Value::Dict>()) add(key, entry);
  } else if (value.is<at::Tensor>()) {
    const auto& tensor = value.as<at::Tensor>();
    const auto sizes = tensor.defined() ? tensor.sizes().vec() : std::vector<std::int64_t>();
    items.push_back({path, sizes, {std::vector<std::int64_t>(sizes.size()), sizes}, value});
  } else if (is_one_item(value)) {
    items.push_back({.path = path, .value = value});
  } else {
    const auto& list = value.as<Value::List>();
    for (std::size_t i = 0; i < list.size(); ++i) add(static_cast<std::int64_t>(i), list[i]);
  }
}

// The place of a value in TorchFileOptions.
std::vector<std::string> place_of(const StatePath& path) {
  std::vector<std::string> place;
  for (std::size_t i = 0; i < path.size(); ++i) place.push_back(item_name({path[i]}));
  return place;
}

// A tensor on the CPU, as planned, whose storage contains nothing else, since torch.save writes complete storages.
Value compact(const Value& value) {
  if (!value.is<at::Tensor>()) return value;
  const auto tensor = value.as<at::Tensor>().detach().cpu().contiguous();
  return tensor.storage().nbytes() == tensor.nbytes() ? tensor : tensor.clone();
}

}  // namespace

std::vector<DistributedItem> checkpoint::items_of(const Value& state_dict) {
  std::vector<DistributedItem> items;
  add_items(items, {}, state_dict);
  return items;
}

std::vector<ItemDescription> checkpoint::described(const std::vector<DistributedItem>& items,
                                                   const TorchFileOptions& types) {
  std::vector<ItemDescription> descriptions;
  for (const auto& item : items) {
    ItemDescription description{.path = item.path, .sizes = item.sizes, .box = item.box};
    auto stand_in = item.value;
    if (item.value.is<at::Tensor>()) {
      const auto& tensor = item.value.as<at::Tensor>();
      description.dtype = tensor.scalar_type();
      // Other tensors are errors of archive_size.
      if (tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta())
        stand_in = at::empty(item.box.sizes, at::TensorOptions(*description.dtype));
    }
    description.length = archive_size(stand_in, types, place_of(item.path), item_name(item.path));
    descriptions.push_back(std::move(description));
  }
  return descriptions;
}

DistributedPlan checkpoint::plan_distributed_files(const std::vector<std::vector<ItemDescription>>& ranks) {
  DistributedPlan plan;
  std::set<std::pair<std::string, std::vector<std::int64_t>>> written;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    StoredPlace place{.file = distributed_file(rank)};
    auto& indices = plan.items.emplace_back();
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      const auto& item = ranks[rank][i];
      const auto name = item_name(item.path);
      const auto& path = plan.metadata.paths.emplace(name, item.path).first->second;
      check_argument(path == item.path, "two items have the name '{}', from different keys; rename a key with a dot",
                     name);
      if (!written.emplace(name, item.box.offsets).second) continue;
      place.length = item.length;
      if (item.dtype) {
        auto& tensor =
            plan.metadata.tensors.try_emplace(name, DistributedTensor{*item.dtype, item.sizes, {}}).first->second;
        tensor.chunks.push_back({item.box, place});
      } else {
        plan.metadata.objects.emplace(name, place);
      }
      place.offset += item.length;
      indices.push_back(i);
    }
  }
  return plan;
}

std::string checkpoint::distributed_file(std::size_t rank) { return fmt::format("__{}_0.distcp", rank); }

// Tensors are copied one at a time where they are views.
void checkpoint::write_items(Files& files, const std::string& path, const std::vector<DistributedItem>& items,
                             const TorchFileOptions& types) {
  write_atomically(files, path, [&](WritableFile& file) {
    for (const auto& item : items)
      append_archive(file, compact(item.value), types, place_of(item.path),
                     fmt::format("{}: '{}'", path, item_name(item.path)));
  });
}

void write_distributed_checkpoint(Files& files, const std::string& folder, const Value& state_dict,
                                  const TorchFileOptions& types) {
  const auto items = items_of(state_dict);
  const auto plan = plan_distributed_files({described(items, types)});
  const auto unfinished = begin_folder(files, folder);
  RecordingFiles recording(files, unfinished);
  try {
    write_items(recording, unfinished + "/" + distributed_file(0), items, types);
    write_atomically(recording, unfinished + "/" + kMetadataFile, write_metadata(plan.metadata));
  } catch (...) {
    abandon_folder(files, folder);
    throw;
  }
  publish_folder(files, folder, {.world_size = 1, .files = recording.entries()});
}

}  // namespace accel
