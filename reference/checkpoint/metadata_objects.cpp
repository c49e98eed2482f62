// The classes of the `.metadata` file of torch.distributed.checkpoint. They only hold attributes, so that objects keep
// the name of their class and the state that the pickle sets.
// Sources: torch/distributed/checkpoint/metadata.py and filesystem.py, _StorageInfo.
#include <algorithm>
#include <array>

#include "reference/checkpoint/python_calls.hpp"

namespace accel::checkpoint {
namespace {

using namespace std::string_view_literals;

// The second TensorProperties is that of torch before 2.3.
constexpr std::array kMetadataClasses{"torch.distributed.checkpoint.metadata.BytesStorageMetadata"sv,
                                      "torch.distributed.checkpoint.metadata.ChunkStorageMetadata"sv,
                                      "torch.distributed.checkpoint.metadata.Metadata"sv,
                                      "torch.distributed.checkpoint.metadata.MetadataIndex"sv,
                                      "torch.distributed.checkpoint.metadata.StorageMeta"sv,
                                      "torch.distributed.checkpoint.metadata.TensorProperties"sv,
                                      "torch.distributed.checkpoint.metadata.TensorStorageMetadata"sv,
                                      "torch.distributed.checkpoint.filesystem._StorageInfo"sv,
                                      "torch.distributed._shard.sharded_tensor.metadata.TensorProperties"sv};
constexpr std::array kMemoryFormats{"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING"sv,
                                    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING"sv};
constexpr std::array kPaths{"pathlib.PosixPath"sv, "pathlib.WindowsPath"sv, "pathlib._local.PosixPath"sv,
                            "pathlib._local.WindowsPath"sv};

template <std::size_t N>
const std::string_view* find_name(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto* found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? nullptr : found;
}

// A value of an enumeration: getattr(class, name) in Python 3.11, class(number) in others.
bool is_memory_format(const python::Global& global, const python::Sequence& arguments, const std::string& what) {
  const auto& type =
      global.name == "builtins.getattr" ? argument<python::Global>(arguments, 0, what).name : global.name;
  return find_name(kMemoryFormats, type) != nullptr;
}

}  // namespace

bool is_metadata_name(std::string_view name) {
  return find_name(kMetadataClasses, name) || find_name(kMemoryFormats, name) || find_name(kPaths, name) ||
         name == "builtins.getattr";
}

// Memory formats and paths, such as that of the folder when it was saved, are not needed.
PythonObject* call_metadata(const python::Global& global, const python::Sequence& arguments, const std::string& what,
                            PythonObjects& objects) {
  if (const auto* name = find_name(kMetadataClasses, global.name)) return objects.make(python::Instance{*name});
  const bool is_ignored = find_name(kPaths, global.name) || is_memory_format(global, arguments, what);
  return is_ignored ? objects.make(python::None{}) : nullptr;
}

}  // namespace accel::checkpoint
