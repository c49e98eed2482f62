#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "reference/checkpoint/torch_archive.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/mapped_file.hpp"

namespace accel {
namespace {

using namespace checkpoint;
namespace fs = std::filesystem;

DistributedMetadata metadata_in(const std::string& folder) {
  const auto path = folder + "/" + kMetadataFile;
  check_checkpoint(fs::is_regular_file(path),
                   "{}: lacks {}; expected a folder of torch.distributed.checkpoint, as FSDP saves it with "
                   "SHARDED_STATE_DICT",
                   folder, kMetadataFile);
  return read_metadata(PosixFiles().read(path), path);
}

// The last byte that items need of each file.
std::map<std::string, std::int64_t> sizes_of_files(const DistributedMetadata& metadata) {
  std::map<std::string, std::int64_t> sizes;
  const auto add = [&](const StoredPlace& place) {
    auto& size = sizes[place.file];
    const auto end = place.length > INT64_MAX - place.offset ? INT64_MAX : place.offset + place.length;
    size = std::max(size, end);
  };
  for (const auto& [name, tensor] : metadata.tensors) {
    for (const auto& chunk : tensor.chunks) add(chunk.place);
  }
  for (const auto& [name, place] : metadata.objects) add(place);
  return sizes;
}

// A small file must not describe tensors that need much memory.
void add_short_chunks(const DistributedMetadata& metadata, std::vector<std::string>& problems) {
  for (const auto& [name, tensor] : metadata.tensors) {
    for (const auto& chunk : tensor.chunks) {
      const auto size = numel_of(chunk.box.sizes) * static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
      if (chunk.place.length < size)
        problems.push_back(fmt::format("'{}': the chunk at [{}] has {} bytes in {}, expected {} or more", name,
                                       fmt::join(chunk.box.offsets, ", "), chunk.place.length, chunk.place.file, size));
    }
  }
}

ZipArchive archive_at(const std::shared_ptr<const MappedFile>& file, const StoredPlace& place,
                      const std::string& name) {
  const ZipArchive::Part part{.file = file,
                              .begin = static_cast<std::uint64_t>(place.offset),
                              .size = static_cast<std::uint64_t>(place.length)};
  return {part, fmt::format("{}: '{}'", file->path(), name)};
}

Box complete(const std::vector<std::int64_t>& sizes) { return {std::vector<std::int64_t>(sizes.size()), sizes}; }

at::Tensor narrowed(at::Tensor tensor, const std::vector<std::int64_t>& offsets,
                    const std::vector<std::int64_t>& sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i)
    tensor = tensor.narrow(static_cast<std::int64_t>(i), offsets[i], sizes[i]);
  return tensor;
}

// A nested state dict while items are added, in any order. A container has the entries of a list under their indices.
struct Nested {
  std::map<std::string, Nested> entries = {};
  bool is_list = false;
  std::optional<Value> item = {};
};

void add_item(Nested& nested, const StatePath& path, Value item) {
  auto* place = &nested;
  for (const auto& step : path) {
    const auto* index = std::get_if<std::int64_t>(&step);
    place->is_list |= index != nullptr;
    place = &place->entries[index != nullptr ? std::to_string(*index) : std::get<std::string>(step)];
  }
  place->item = std::move(item);
}

// A container that also was an item is one that is empty on some rank.
Value nested_value(const Nested& nested, const std::string& folder) {
  if (nested.item && nested.entries.empty()) return *nested.item;
  Value::Dict dict;
  for (const auto& [key, entry] : nested.entries) dict.emplace(key, nested_value(entry, folder));
  if (!nested.is_list) return dict;
  Value::List list;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const auto found = dict.find(std::to_string(i));
    check_checkpoint(found != dict.end(), "{}: a list lacks its entry {}; copy or save the folder again", folder, i);
    list.push_back(found->second);
  }
  return list;
}

}  // namespace

DistributedCheckpoint::DistributedCheckpoint(std::string folder)
    : folder_(std::move(folder)), metadata_(metadata_in(folder_)) {
  std::vector<std::string> problems;
  for (const auto& [name, size] : sizes_of_files(metadata_)) {
    const auto path = folder_ + "/" + name;
    std::error_code error;  // e.g. of a name that is too long
    if (!fs::is_regular_file(path, error)) {
      problems.push_back(fmt::format("{} is missing", name));
      continue;
    }
    const auto& file = files_[name] = std::make_shared<const MappedFile>(path);
    if (const auto found = static_cast<std::int64_t>(file->size()); found < size)
      problems.push_back(fmt::format("{} is truncated: {} bytes, expected {}", name, found, size));
  }
  add_short_chunks(metadata_, problems);
  check_checkpoint(problems.empty(), "{}: {}; copy all files of one save", folder_, listed(problems, "; "));
}

at::Tensor DistributedCheckpoint::load_chunk(const std::string& name, const StoredChunk& chunk) const {
  const TorchArchive archive(archive_at(files_.at(chunk.place.file), chunk.place, name));
  const auto* view = archive.root().get_if<python::TensorView>();
  check_checkpoint(view != nullptr, "{}: expected a tensor; copy or save the file again", archive.path());
  check_checkpoint(view->sizes == chunk.box.sizes, "{}: has the sizes [{}], expected [{}]; copy all files of one save",
                   archive.path(), fmt::join(view->sizes, ", "), fmt::join(chunk.box.sizes, ", "));
  const auto dtype = metadata_.tensors.at(name).dtype;
  check_checkpoint(view->dtype == dtype, "{}: has the dtype {}, expected {}; copy all files of one save",
                   archive.path(), c10::toString(view->dtype), c10::toString(dtype));
  return archive.tensor(*view, archive.storage(*view));
}

at::Tensor DistributedCheckpoint::load(const std::string& name) const {
  const auto found = metadata_.tensors.find(name);
  check_argument(found != metadata_.tensors.end(), "{}: no tensor '{}'", folder_, name);
  return load(name, complete(found->second.sizes));
}

at::Tensor DistributedCheckpoint::load(const std::string& name, const Box& box) const {
  const auto found = metadata_.tensors.find(name);
  check_argument(found != metadata_.tensors.end(), "{}: no tensor '{}'", folder_, name);
  const auto& tensor = found->second;
  check_argument(is_inside(box, tensor.sizes), "{}: '{}' has the sizes [{}]; requested [{}] at [{}]", folder_, name,
                 fmt::join(tensor.sizes, ", "), fmt::join(box.sizes, ", "), fmt::join(box.offsets, ", "));
  std::vector<Box> boxes;
  for (const auto& chunk : tensor.chunks) boxes.push_back(chunk.box);
  auto result = at::empty(box.sizes, at::TensorOptions(tensor.dtype));
  std::vector<std::string> problems;
  for (const auto& read : plan_box_reads(boxes, box)) {
    try {
      narrowed(result, read.to, read.sizes)
          .copy_(narrowed(load_chunk(name, tensor.chunks[read.chunk]), read.from, read.sizes));
    } catch (const CheckpointError& error) {
      problems.emplace_back(error.what());
    }
  }
  check_checkpoint(problems.empty(), "{}", listed(problems, "; "));
  return result;
}

Value DistributedCheckpoint::load_object(const std::string& name) const {
  const auto found = metadata_.objects.find(name);
  check_argument(found != metadata_.objects.end(), "{}: no object '{}'", folder_, name);
  TorchArchive archive(archive_at(files_.at(found->second.file), found->second, name));
  return read_value(archive);
}

Value DistributedCheckpoint::state_dict(const std::set<std::string>& without) const {
  Nested root;
  std::vector<std::string> problems;
  for (const auto& [name, path] : metadata_.paths) {
    if (without.contains(name)) continue;
    try {
      add_item(root, path, metadata_.tensors.contains(name) ? Value(load(name)) : load_object(name));
    } catch (const CheckpointError& error) {
      problems.emplace_back(error.what());
    }
  }
  check_checkpoint(problems.empty(), "{}", listed(problems, "; "));
  return nested_value(root, folder_);
}

std::map<std::string, at::Tensor> read_distributed_checkpoint(const std::string& folder) {
  const DistributedCheckpoint saved(folder);
  std::map<std::string, at::Tensor> tensors;
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : saved.metadata().tensors) {
    try {
      tensors.emplace(name, saved.load(name));
    } catch (const CheckpointError& error) {
      problems.emplace_back(error.what());
    }
  }
  check_checkpoint(problems.empty(), "{}", listed(problems, "; "));
  return tensors;
}

bool checkpoint::is_distributed_checkpoint(const std::string& folder) {
  return fs::is_regular_file(folder + "/" + kMetadataFile);
}

std::map<std::string, StoredWeight> checkpoint::distributed_weights(const std::string& folder) {
  const auto saved = std::make_shared<const DistributedCheckpoint>(folder);
  const auto& metadata = saved->metadata();
  std::vector<std::string> others;
  for (const auto& [name, place] : metadata.objects) others.push_back(name);
  check_checkpoint(others.empty(), "{}: '{}' are not tensors; expected the folder of a model", folder,
                   listed(others, "', '"));
  std::set<std::string> outer;
  for (const auto& [name, path] : metadata.paths) outer.insert(path.size() > 1 ? std::get<std::string>(path[0]) : "");
  const bool has_outer = outer.size() == 1 && !outer.contains("");
  std::map<std::string, StoredWeight> weights;
  for (const auto& [name, tensor] : metadata.tensors) {
    weights.emplace(
        item_name(metadata.paths.at(name), has_outer ? 1 : 0),
        StoredWeight{.file = folder, .dtype = tensor.dtype, .sizes = tensor.sizes, .load = [saved, name = name] {
                       return saved->load(name);
                     }});
  }
  return weights;
}

}  // namespace accel
