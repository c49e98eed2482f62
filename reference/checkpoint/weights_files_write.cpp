#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/checkpoint/weights_plan.hpp"
#include "reference/core/safetensors.hpp"

namespace accel {
namespace {

// Meta tensors have a storage object without memory.
bool has_storage(const at::Tensor& tensor) { return tensor.has_storage() && !tensor.is_meta(); }

// The files of an earlier save that this one does not overwrite, such as further shards.
std::vector<std::string> stale_files(const std::string& folder, const WeightsPlan& plan, bool safe_serialization) {
  std::set<std::string> written{plan.index_file};
  for (const auto& file : plan.files) written.insert(file.name);
  std::vector<std::string> stale;
  std::error_code none;  // a folder of test Files does not exist on disk, so nothing is stale
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const auto name = entry.path().filename().string();
    if (is_weights_file(name, safe_serialization) && !written.contains(name)) stale.push_back(name);
  }
  // The index is removed first. A crash afterwards leaves shards that nobody reads, instead of an index with missing
  // shards.
  const auto index = weights_index_name(safe_serialization);
  std::sort(stale.begin(), stale.end(),
            [&](const auto& a, const auto& b) { return std::pair(a != index, a) < std::pair(b != index, b); });
  return stale;
}

WeightMap weight_map(const WeightsPlan& plan) {
  WeightMap map;
  for (const auto& file : plan.files) {
    for (const auto& name : file.tensors) map[name] = file.name;
  }
  return map;
}

}  // namespace

WeightsPlan plan_weights(const NamedTensors& tensors, const WeightsPlanOptions& options) {
  std::map<const void*, std::size_t> seen;  // number of tensors per storage
  for (const auto& [name, tensor] : tensors) {
    if (has_storage(tensor)) ++seen[tensor.storage().unsafeGetStorageImpl()];
  }
  std::vector<SavedTensor> saved;
  std::map<const void*, std::size_t> memories;
  for (const auto& [name, tensor] : tensors) {
    const auto* storage = has_storage(tensor) ? tensor.storage().unsafeGetStorageImpl() : nullptr;
    // The size decides into which file a tensor goes, and must equal that of huggingface_hub, get_torch_storage_size:
    // the complete storage of a dense tensor that does not share it, else the tensor's own elements.
    const bool counts_storage =
        storage && (!options.safe_serialization || (tensor.is_contiguous() && seen[storage] == 1));
    SavedTensor entry{
        .name = name,
        .num_bytes = static_cast<std::int64_t>(counts_storage ? tensor.storage().nbytes() : tensor.nbytes())};
    if (storage && !options.safe_serialization) entry.memory = memories.emplace(storage, memories.size()).first->second;
    saved.push_back(std::move(entry));
  }
  return plan_weights_files(saved, options);
}

std::map<std::string, std::string> write_weights(Files& files, const std::string& folder, const NamedTensors& tensors,
                                                 const WeightsPlanOptions& options) {
  const auto unique = options.safe_serialization ? deduplicate_shared(tensors) : DeduplicatedTensors{tensors, {}};
  const auto plan = plan_weights(unique.tensors, options);
  const std::map<std::string, at::Tensor> by_name(unique.tensors.begin(), unique.tensors.end());
  files.make_folder(folder);
  const auto in_folder = [&](const std::string& name) { return (std::filesystem::path(folder) / name).string(); };
  for (const auto& file : plan.files) {
    NamedTensors shard;
    for (const auto& name : file.tensors) shard.emplace_back(name, by_name.at(name));
    if (options.safe_serialization)
      write_safetensors(files, in_folder(file.name), shard, {{"format", "pt"}});
    else
      write_torch_file(files, in_folder(file.name), shard, /*is_ordered_dict=*/false);
  }
  // The index is written after the files that it lists, and old files are removed last: a reader never finds an index
  // whose files are missing.
  if (plan.is_sharded())
    write_atomically(files, in_folder(plan.index_file), weights_index(weight_map(plan), plan.total_bytes));
  const auto stale = stale_files(folder, plan, options.safe_serialization);
  for (const auto& name : stale) files.remove(in_folder(name));
  if (!stale.empty()) files.sync_folder(folder);
  return unique.same_as;
}

}  // namespace accel
