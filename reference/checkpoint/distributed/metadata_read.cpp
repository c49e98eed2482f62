#include <fmt/ranges.h>

#include <optional>

#include "reference/checkpoint/distributed/metadata.hpp"
#include "reference/checkpoint/torch_dtypes.hpp"
#include "reference/checkpoint/unpickler.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/stored_tensor.hpp"

namespace accel::checkpoint {
namespace {

constexpr std::size_t kPathMax = 100;

// An item's place is stored under its name and, for a tensor, the offsets of the chunk.
using PlaceKey = std::pair<std::string, std::vector<std::int64_t>>;

class MetadataReader {
 public:
  MetadataReader(std::string_view bytes, const std::string& path) : path_(path), objects_(bytes.size()) {
    root_ = unpickle(bytes, path, objects_, PythonNames::kDistributedMetadata);
  }

  DistributedMetadata read() {
    check_checkpoint(is_a(*root_, "Metadata"), "{}: expected an object of torch.distributed.checkpoint.Metadata",
                     path_);
    read_places(attribute<python::Dict>(*root_, "storage_data"));
    for (const auto& [key, item] : attribute<python::Dict>(*root_, "state_dict_metadata").items) {
      const auto& name = copied(as<std::string>(*key, "the name of an item"));
      metadata_.paths.emplace(name, StatePath{name});
      is_a(*item, "BytesStorageMetadata") ? add_object(name) : add_tensor(name, *item);
    }
    // Without planner data the state dict is flat: the default above.
    const auto* paths = find_attribute(*root_, "planner_data");
    if (paths != nullptr && paths->get_if<python::Dict>()) read_paths(*paths->get_if<python::Dict>());
    check_checkpoint(problems_.empty(), "{}: {}; copy all files of one save, or save it again", path_,
                     listed(problems_, "; "));
    return std::move(metadata_);
  }

 private:
  static bool is_a(const PythonObject& object, std::string_view class_name) {
    const auto* instance = object.get_if<python::Instance>();
    return instance != nullptr && instance->class_name.ends_with(fmt::format(".{}", class_name));
  }
  template <typename T>
  const T& as(const PythonObject& object, std::string_view what) const {
    const auto* content = object.get_if<T>();
    check_checkpoint(content != nullptr, "{}: {} has an unexpected type; the file is damaged: copy or save it again",
                     path_, what);
    return *content;
  }
  // Null if the object lacks it: an attribute that was never set has the default of its class, which is None.
  const PythonObject* find_attribute(const PythonObject& object, std::string_view name) {
    const auto* instance = object.get_if<python::Instance>();
    const auto* state =
        instance != nullptr && instance->state != nullptr ? instance->state->get_if<python::Dict>() : nullptr;
    if (state == nullptr) return nullptr;
    // A pickle may reference one large object many times. Reading it again costs time instead of memory.
    objects_.spend(state->items.size(), path_);
    for (const auto& [key, value] : state->items) {
      if (const auto* text = key->get_if<std::string>(); text != nullptr && *text == name) return value;
    }
    return nullptr;
  }
  const PythonObject& attribute_of(const PythonObject& object, std::string_view name) {
    const auto* value = find_attribute(object, name);
    check_checkpoint(value != nullptr, "{}: an object lacks '{}'; the file is damaged: copy or save it again", path_,
                     name);
    return *value;
  }
  template <typename T>
  const T& attribute(const PythonObject& object, std::string_view name) {
    return as<T>(attribute_of(object, name), name);
  }
  // Spends a text that is copied or compared, since a pickle may reference it many times.
  const std::string& copied(const std::string& text) {
    objects_.spend(text.size(), path_);
    return text;
  }
  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
    objects_.spend(problems_.back().size(), path_);
  }
  std::vector<std::int64_t> integers(const PythonObject& object, std::string_view what) {
    std::vector<std::int64_t> numbers;
    const auto& items = as<python::Sequence>(object, what).items;
    objects_.spend(items.size() * sizeof(std::int64_t), path_);
    for (const auto* item : items) numbers.push_back(as<std::int64_t>(*item, what));
    return numbers;
  }

  // A place must be inside of the folder, whatever the file names.
  void read_places(const python::Dict& places) {
    for (const auto& [index, info] : places.items) {
      const auto& name = copied(attribute<std::string>(*index, "fqn"));
      const auto* offset = find_attribute(*index, "offset");
      const bool is_object = offset == nullptr || offset->get_if<python::None>() != nullptr;
      StoredPlace place{.file = copied(attribute<std::string>(*info, "relative_path")),
                        .offset = attribute<std::int64_t>(*info, "offset"),
                        .length = attribute<std::int64_t>(*info, "length")};
      if (place.file.empty() || place.file.find('/') != std::string::npos || place.file == "..")
        problem("'{}' is in '{}', which is no file of this folder", name, place.file);
      if (place.offset < 0 || place.length < 0)
        problem("'{}' has {} bytes at byte {} of {}", name, place.length, place.offset, place.file);
      const auto* transforms = find_attribute(*info, "transform_descriptors");
      if (transforms != nullptr && transforms->get_if<python::None>() == nullptr)
        problem("'{}' is stored through an extension of the writer, which is unsupported", name);
      places_[{name, is_object ? std::vector<std::int64_t>() : integers(*offset, "offset")}] = std::move(place);
    }
  }

  void add_object(const std::string& name) {
    const auto found = places_.find({name, {}});
    if (found == places_.end())
      problem("'{}' is in no file", name);
    else
      metadata_.objects.emplace(name, found->second);
  }

  void add_tensor(const std::string& name, const PythonObject& item) {
    const auto dtype = dtype_of(attribute_of(item, "properties"));
    if (!dtype) {
      problem("'{}' has an unknown dtype", name);
      return;
    }
    DistributedTensor tensor{.dtype = *dtype, .sizes = integers(attribute_of(item, "size"), "size")};
    if (tensor.sizes.size() > kDimensionsMax) {
      problem("'{}' has {} dimensions; expected at most {}", name, tensor.sizes.size(), kDimensionsMax);
      return;
    }
    if (!num_bytes_of(tensor.sizes, static_cast<std::int64_t>(c10::elementSize(*dtype)) * 8)) {
      problem("'{}' has the sizes [{}]", name, fmt::join(tensor.sizes, ", "));
      return;
    }
    std::vector<Box> boxes;
    for (const auto* chunk : attribute<python::Sequence>(item, "chunks").items)
      boxes.push_back(
          {integers(attribute_of(*chunk, "offsets"), "offsets"), integers(attribute_of(*chunk, "sizes"), "sizes")});
    if (const auto reason = problem_of_boxes(tensor.sizes, boxes); !reason.empty()) {
      problem("'{}': {}", name, reason);
      return;
    }
    // Ranks without a part write empty chunks, all with the same offsets.
    for (auto& box : boxes) {
      if (numel_of(box.sizes) > 0) add_chunk(name, tensor, std::move(box));
    }
    metadata_.tensors.emplace(name, std::move(tensor));
  }
  void add_chunk(const std::string& name, DistributedTensor& tensor, Box box) {
    const auto found = places_.find({copied(name), box.offsets});
    if (found == places_.end()) {
      problem("'{}': the chunk at [{}] is in no file", name, fmt::join(box.offsets, ", "));
    } else {
      copied(found->second.file);
      tensor.chunks.push_back({std::move(box), found->second});
    }
  }

  // The state of TensorProperties is a tuple that begins with the dtype.
  std::optional<at::ScalarType> dtype_of(const PythonObject& properties) const {
    const auto* instance = properties.get_if<python::Instance>();
    const auto* state =
        instance != nullptr && instance->state != nullptr ? instance->state->get_if<python::Sequence>() : nullptr;
    const auto* name = state != nullptr && !state->items.empty() ? state->items[0]->get_if<python::Global>() : nullptr;
    constexpr std::string_view kTorch = "torch.";
    return name != nullptr && name->name.starts_with(kTorch) ? torch_dtype(name->name.substr(kTorch.size()))
                                                             : std::nullopt;
  }

  void read_paths(const python::Dict& paths) {
    for (const auto& [key, steps] : paths.items) {
      const auto& name = copied(as<std::string>(*key, "the name of an item"));
      const auto found = metadata_.paths.find(name);
      if (found == metadata_.paths.end()) continue;
      const auto& items = as<python::Sequence>(*steps, "a path").items;
      if (items.empty() || items.size() > kPathMax || items.front()->get_if<std::string>() == nullptr) {
        problem("'{}' has a path of {} steps; expected 1 to {}, and the name of an entry first", name, items.size(),
                kPathMax);
        continue;
      }
      StatePath path;
      for (const auto* step : items) {
        if (const auto* index = step->get_if<std::int64_t>())
          path.emplace_back(*index);
        else
          path.emplace_back(copied(as<std::string>(*step, "a step of a path")));
      }
      found->second = std::move(path);
    }
  }

  std::string path_;
  PythonObjects objects_;
  const PythonObject* root_;
  std::map<PlaceKey, StoredPlace> places_;
  DistributedMetadata metadata_;
  std::vector<std::string> problems_;
};

}  // namespace

DistributedMetadata read_metadata(std::string_view bytes, const std::string& path) {
  return MetadataReader(bytes, path).read();
}

std::string item_name(const StatePath& path, std::size_t skipped) {
  std::vector<std::string> steps;
  for (auto step = path.begin() + static_cast<std::ptrdiff_t>(skipped); step != path.end(); ++step) {
    const auto* index = std::get_if<std::int64_t>(&*step);
    steps.push_back(index != nullptr ? std::to_string(*index) : std::get<std::string>(*step));
  }
  return fmt::to_string(fmt::join(steps, "."));
}

}  // namespace accel::checkpoint
