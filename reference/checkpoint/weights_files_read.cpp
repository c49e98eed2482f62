// Reading of weights. Only directories and headers are read here; each tensor is read when its `load` is called, so a
// model larger than memory can be loaded tensor by tensor.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "reference/checkpoint/torch_archive.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/checkpoint/weights_plan.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/safetensors.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using Weights = std::map<std::string, StoredWeight>;

// `stored` holds the mapped file, so the functions below may outlive `file`.
Weights read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  Weights weights;
  for (const auto& name : file.names()) {
    const auto stored = file.stored(name);
    weights[name] = {.file = path,
                     .dtype = stored.dtype,
                     .sizes = stored.sizes,
                     .load = [stored] { return stored.load(); },
                     .load_directly = [stored](const at::Tensor& tensor) { stored.load_into(tensor); }};
  }
  return weights;
}

// The archive is shared by the functions that load its tensors, so the file stays mapped as long as one of them exists.
Weights read_torch_weights(const std::string& path) {
  const auto archive = std::make_shared<checkpoint::TorchArchive>(path);
  const auto* dict = archive->root().get_if<checkpoint::python::Dict>();
  check_checkpoint(dict != nullptr, "{}: does not contain a dict of tensors", path);
  Weights weights;
  std::vector<std::string> problems;
  for (const auto& [key, value] : dict->items) {
    const auto* name = key->get_if<std::string>();
    const auto* view = value->get_if<checkpoint::python::TensorView>();
    if (!name || !view) {
      problems.push_back(name ? *name : "a key that is not a string");
      continue;
    }
    archive->check(*view);
    weights[*name] = {.file = path, .dtype = view->dtype, .sizes = view->sizes, .load = [archive, view] {
                        return archive->tensor(*view, archive->storage(*view));
                      }};
  }
  check_checkpoint(problems.empty(),
                   "{}: expected tensors by name; these entries are not: {}; save only the model's state_dict", path,
                   listed(problems, ", "));
  return weights;
}

// Recognizes the format by the first bytes, since extensions are not reliable: "PK" begins every zip archive.
Weights read_file(const std::string& path) {
  try {
    const MappedFile file(path);
    if (file.read(0, std::min<std::size_t>(file.size(), 2)) == "PK") return read_torch_weights(path);
    return read_safetensors(path);
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

// Reads an index and all its files, and collects every problem, so that a user who copied only some of the files sees
// the complete list.
class ShardedWeights {
 public:
  explicit ShardedWeights(const std::string& index_path) : index_path_(index_path) {
    const auto map = read_index();
    std::set<std::string> files;
    for (const auto& [name, file] : map) files.insert(file);
    for (const auto& file : files) read_shard(file);
    for (const auto& [name, file] : map) place(name, file);
    // A tensor outside the index is an error: it may be the leftover of another save, and nobody would load it.
    for (const auto& [file, shard] : shards_) {
      for (const auto& [name, weight] : shard) {
        if (!map.contains(name))
          problems_.push_back(fmt::format("{} contains tensor '{}', which the index does not list", file, name));
      }
    }
    check_checkpoint(problems_.empty(), "{}: the files do not match the index; copy all files of one save:\n  {}",
                     index_path, listed(problems_, "\n  "));
  }
  Weights take() { return std::move(weights_); }

 private:
  [[nodiscard]] WeightMap read_index() const {
    try {
      return read_weights_index(MappedFile(index_path_).read(), index_path_);
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
  }
  // A damaged file is one problem of several; the other files are still checked.
  void read_shard(const std::string& file) {
    try {
      shards_[file] = read_file((fs::path(index_path_).parent_path() / file).string());
    } catch (const CheckpointError& error) {
      problems_.emplace_back(error.what());
    }
  }
  void place(const std::string& name, const std::string& file) {
    const auto shard = shards_.find(file);
    if (shard == shards_.end()) return;  // read_shard has reported the file
    const auto found = shard->second.find(name);
    if (found == shard->second.end())
      problems_.push_back(fmt::format("{} lacks tensor '{}'", file, name));
    else
      weights_[name] = found->second;
  }

  std::string index_path_;
  std::map<std::string, Weights> shards_;
  Weights weights_;
  std::vector<std::string> problems_;
};

// Returns the path of the weights file or index in a folder. The order is that of accelerate/utils/modeling.py,
// load_checkpoint_in_model: pytorch_model.bin wins over model.safetensors.
std::string weights_in(const std::string& folder) {
  std::error_code none;
  for (const bool safe_serialization : {false, true}) {
    const auto file = fs::path(folder) / weights_file_name(safe_serialization);
    if (fs::is_regular_file(file, none)) return file.string();
  }
  std::vector<std::string> indices;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const auto name = entry.path().string();
    constexpr std::string_view kEnd = ".index.json";
    if (name.size() >= kEnd.size() && name.substr(name.size() - kEnd.size()) == kEnd) indices.push_back(name);
  }
  std::sort(indices.begin(), indices.end());
  check_checkpoint(!indices.empty(), "{}: contains no weights; expected {}, {} or an index of several files ({})",
                   folder, weights_file_name(true), weights_file_name(false), weights_index_name(true));
  check_checkpoint(indices.size() == 1,
                   "{}: contains several indices, expected one: {}; remove the others, or pass the path of one", folder,
                   fmt::join(indices, ", "));
  return indices.front();
}

}  // namespace

// A folder resolves to a file or an index. An index is recognized by its extension, all other files by their content.
Weights read_weights(const std::string& path) {
  std::error_code none;
  const auto file = fs::is_directory(path, none) ? weights_in(path) : path;
  const bool is_index = fs::path(file).extension() == ".json";
  return is_index ? ShardedWeights(file).take() : read_file(file);
}

}  // namespace accel
