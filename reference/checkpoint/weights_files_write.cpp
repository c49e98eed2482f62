#include <algorithm>
#include <filesystem>
#include <set>

#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/checkpoint/weights_plan.hpp"
#include "reference/files/safetensors.hpp"

namespace accel {
namespace {

// Meta tensors have a storage object without memory.
bool has_storage(const at::Tensor& tensor) { return tensor.has_storage() && !tensor.is_meta(); }

// The files of an earlier save that this one does not overwrite, such as further shards.
std::vector<std::string> stale_files(Files& files, const std::string& folder, const WeightsPlan& plan,
                                     bool safe_serialization) {
  std::set<std::string> written{plan.index_file};
  for (const auto& file : plan.files) written.insert(file.name);
  std::vector<std::string> stale;
  for (const auto& name : files.list(folder)) {
    if (is_weights_file(name, safe_serialization) && !written.contains(name)) stale.push_back(name);
  }
  // The index is removed first. A crash afterwards leaves shards that nobody reads, instead of an index with missing
  // shards.
  const auto index = weights_index_name(safe_serialization);
  std::sort(stale.begin(), stale.end(),
            [&](const auto& a, const auto& b) { return std::pair(a != index, a) < std::pair(b != index, b); });
  return stale;
}

// The files that a reader of the folder takes now.
std::set<std::string> files_in_use(Files& files, const std::string& folder, bool safe_serialization) {
  const auto path = folder + "/" + weights_index_name(safe_serialization);
  std::set<std::string> used;
  if (!is_file(files, path)) return used;
  try {
    for (const auto& [tensor, file] : read_weights_index(files.read(path), path)) used.insert(file);
  } catch (const CheckpointError&) {  // damaged: nobody can read it
  }
  return used;
}

// The names under which the shards are written, in the order of the plan: their own, or spare ones if the index in use
// lists any of these.
std::vector<std::string> names_to_write(const WeightsPlan& plan, const std::set<std::string>& in_use) {
  for (int spare = 0;; ++spare) {
    std::vector<std::string> names;
    for (const auto& file : plan.files) names.push_back(spare == 0 ? file.name : spare_weights_name(file.name, spare));
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return in_use.contains(name); })) return names;
  }
}

// `names`: the names of the plan's files on the disk.
WeightMap weight_map(const WeightsPlan& plan, const std::vector<std::string>& names) {
  WeightMap map;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    for (const auto& name : plan.files[i].tensors) map[name] = names[i];
  }
  return map;
}

// Gives a file a second name, and takes that from another file.
void replace_by(Files& files, const std::string& from, const std::string& to) {
  const auto temporary = to + ".tmp";
  if (is_file(files, temporary)) files.remove(temporary);  // of a process that was killed
  files.link(from, temporary);
  files.rename(temporary, to);
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
  // A reader finds the old files or the new ones, complete, whenever this is interrupted: one file is replaced by a
  // rename, and several become the model's when the index names them. So a file that the index in use lists is not
  // overwritten; new shards of the same name are written under another one, and get theirs later.
  const auto names = plan.is_sharded() ? names_to_write(plan, files_in_use(files, folder, options.safe_serialization))
                                       : std::vector{plan.files.front().name};
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    NamedTensors shard;
    for (const auto& name : plan.files[i].tensors) shard.emplace_back(name, by_name.at(name));
    if (options.safe_serialization)
      write_safetensors(files, in_folder(names[i]), shard, {{"format", "pt"}});
    else
      write_torch_file(files, in_folder(names[i]), shard, /*is_ordered_dict=*/false);
  }
  if (plan.is_sharded()) {
    const auto write_index = [&](const std::vector<std::string>& of_files) {
      write_atomically(files, in_folder(plan.index_file), weights_index(weight_map(plan, of_files), plan.total_bytes));
    };
    write_index(names);
    std::vector<std::string> own;
    for (const auto& file : plan.files) own.push_back(file.name);
    if (names != own) {
      for (std::size_t i = 0; i < own.size(); ++i) replace_by(files, in_folder(names[i]), in_folder(own[i]));
      files.sync_folder(folder);
      write_index(own);
    }
  }
  const auto stale = stale_files(files, folder, plan, options.safe_serialization);
  for (const auto& name : stale) files.remove(in_folder(name));
  if (!stale.empty()) files.sync_folder(folder);
  return unique.same_as;
}

}  // namespace accel
