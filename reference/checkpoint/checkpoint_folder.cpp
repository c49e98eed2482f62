// Crash safety of checkpoint folders. A rename is the only atomic step that a file system offers, and it lasts only
// after the parent folder is synced. So files are synced first, then folders from the inside out, then the rename, then
// the parent. After a crash at any point, either the old or the new folder is complete.
#include "reference/checkpoint/checkpoint_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>

namespace accel::checkpoint {
namespace {

constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::string_view kPart = "accel_part_";
constexpr std::string_view kUnfinished = ".tmp", kOutdated = ".old", kRemoved = ".removed";

std::string unfinished(const std::string& path) { return path + std::string(kUnfinished); }
std::string outdated(const std::string& path) { return path + std::string(kOutdated); }
std::string removed(const std::string& path) { return path + std::string(kRemoved); }
std::string above(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Creates a folder and the folders above it, and syncs their names: a checkpoint is lost if its parent's name is.
void make_durable_folder(Files& files, const std::string& path) {
  if (path == "." || path == "/" || is_folder(files, path)) return;
  make_durable_folder(files, above(path));
  files.make_folder(path);
  files.sync_folder(above(path));
}

// Folders such as "checkpoint_3.tmp/" and "checkpoint_best/" have no number and are ignored.
std::optional<std::int64_t> number_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with('/')) return std::nullopt;
  const auto digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - 1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

// Lists the files of a folder and its subfolders by their paths within it.
void list_files(Files& files, const std::string& folder, const std::string& prefix, std::vector<std::string>& names) {
  for (const auto& name : files.list(folder + "/" + prefix))
    name.ends_with('/') ? list_files(files, folder, prefix + name, names) : names.push_back(prefix + name);
}

// For files of hooks, which are small: it reads the complete file into memory.
ManifestEntry entry_of(Files& files, const std::string& folder, const std::string& name) {
  const auto path = folder + "/" + name;
  const auto bytes = files.read(path);
  Checksum checksum;
  checksum.update(bytes);
  return {.name = name, .bytes = std::ssize(bytes), .checksum = checksum.hex()};
}

// Written into the unfinished folder by this file, and no part of the checkpoint. A process that was killed may have
// left the temporary file of any of them.
bool is_record(std::string_view name) { return name.starts_with(kManifestName) || name.starts_with(kPart); }

// Adds files that hooks of the program have created. Nothing recorded them, so they are read for their checksum.
void add_unlisted(Files& files, const std::string& folder, Manifest& manifest) {
  std::vector<std::string> names;
  list_files(files, folder, "", names);
  for (const auto& name : names) {
    if (!manifest.lists(name) && !is_record(name)) manifest.files.push_back(entry_of(files, folder, name));
  }
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

// Whether load_state reads a file or folder of this name, in a checkpoint without a manifest: one that Python wrote, or
// whose manifest is damaged.
bool is_state(std::string_view name) {
  const auto is_any_of = [&](std::initializer_list<std::string_view> beginnings, std::string_view ending) {
    return name.ends_with(ending) && std::any_of(beginnings.begin(), beginnings.end(),
                                                 [&](const auto& beginning) { return name.starts_with(beginning); });
  };
  return is_any_of({"pytorch_model_fsdp_", "optimizer_"}, "/") ||
         is_any_of({"model", "rank_tensors_"}, ".safetensors") ||
         is_any_of({"pytorch_model", "optimizer", "scheduler", "sampler", "dl_state_dict"}, ".bin") ||
         is_any_of({"custom_checkpoint_", "random_states_"}, ".pkl") || name == "scaler.pt";
}

// A damaged manifest counts as none: a new checkpoint must not fail because of an old one.
std::optional<Manifest> manifest_in(Files& files, const std::string& path) {
  try {
    return is_file(files, path) ? std::optional(manifest_of(files.read(path), path)) : std::nullopt;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

// Moves files that the program itself has put into the old folder (notes, plots) to the new one. Files of the old
// manifest are ours, and other state would be loaded in place of the new one: both are dropped. Names that the new
// folder has are not overwritten.
void keep_user_files(Files& files, const std::string& from, const std::string& to) {
  const auto manifest = manifest_in(files, from + "/" + kManifestName).value_or(Manifest());
  const auto taken = files.list(to);
  for (const auto& name : files.list(from)) {
    const auto bare = name.ends_with('/') ? name.substr(0, name.size() - 1) : name;
    const bool is_ours = is_record(name) || is_state(name) ||
                         std::any_of(manifest.files.begin(), manifest.files.end(), [&](const auto& entry) {
                           return entry.name == name || (name.ends_with('/') && entry.name.starts_with(name));
                         });
    if (!is_ours && std::find(taken.begin(), taken.end(), name) == taken.end())
      files.rename(from + "/" + bare, to + "/" + bare);
  }
  files.sync_folder(to);  // before the removals of the old folder reach the disk
}

// The manifest is removed last: until then it distinguishes our files from the user's, whenever this is interrupted.
void remove_outdated(Files& files, const std::string& folder) {
  for (const auto& name : files.list(folder)) {
    if (name.ends_with('/'))
      remove_folder(files, folder + "/" + name.substr(0, name.size() - 1));
    else if (name != kManifestName)
      files.remove(folder + "/" + name);
  }
  files.sync_folder(folder);  // else power loss may undo these removals and not that of the manifest
  remove_folder(files, folder);
}

void remove_parts(Files& files, const std::string& folder) {
  for (const auto& name : files.list(folder)) {
    if (name.starts_with(kPart)) files.remove(folder + "/" + name);
  }
}

// Completes a replacement that a crash interrupted. With a `path` the new folder won, and only clean-up is missing;
// without it the first of two renames happened alone, so it is undone.
void settle(Files& files, const std::string& path) {
  if (!is_folder(files, outdated(path))) return;
  if (is_folder(files, path)) {
    keep_user_files(files, outdated(path), path);
    remove_outdated(files, outdated(path));
  } else {
    files.rename(outdated(path), path);
  }
  files.sync_folder(above(path));
}

// Writes the manifest, after which the folder is complete. So all other names are on the disk before.
void seal(Files& files, const std::string& folder, Manifest manifest) {
  add_unlisted(files, folder, manifest);
  std::set<std::string> inner;
  for (const auto& entry : manifest.files) {
    for (auto within = std::filesystem::path(entry.name).parent_path(); !within.empty(); within = within.parent_path())
      inner.insert(within.string());
  }
  for (const auto& within : inner) files.sync_folder(folder + "/" + within);
  files.sync_folder(folder);
  write_atomically(files, folder + "/" + kManifestName, to_json(manifest));
}

// Gives a sealed folder its final name. An error before that leaves the earlier folder under its name; after it, what
// is left to clean up is left to `settle`, since the checkpoint is saved.
void replace(Files& files, const std::string& path) {
  settle(files, path);
  const bool replaces = is_folder(files, path);
  if (replaces) files.rename(path, outdated(path));
  try {
    files.rename(unfinished(path), path);
  } catch (const FileError&) {
    if (replaces) files.rename(outdated(path), path);
    throw;
  }
  files.sync_folder(above(path));
  try {
    remove_parts(files, path);
    settle(files, path);
  } catch (const FileError&) {
  }
}

// Whether all files that a manifest lists are in the folder.
bool has_files_of(Files& files, const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> names;
  list_files(files, folder, "", names);
  return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const auto& entry) {
    return std::find(names.begin(), names.end(), entry.name) != names.end();
  });
}

// Of a folder without a manifest; nothing if a part is missing: a rank was still writing. Earlier versions did not
// write the number of parts, which was that of the ranks.
std::optional<Manifest> manifest_of_parts(Files& files, const std::string& folder) {
  Manifest whole;
  int num_parts = 0;
  for (const auto& name : files.list(folder)) {
    if (!name.starts_with(kPart) || !name.ends_with(".json")) continue;
    const auto part = manifest_in(files, folder + "/" + name);
    const auto expected = part ? (part->num_parts > 0 ? part->num_parts : part->world_size) : 0;
    if (!part || (num_parts > 0 && expected != whole.num_parts)) return std::nullopt;
    whole.world_size = part->world_size;
    whole.num_parts = expected;
    whole.files.insert(whole.files.end(), part->files.begin(), part->files.end());
    ++num_parts;
  }
  return num_parts > 0 && num_parts == whole.num_parts ? std::optional(std::move(whole)) : std::nullopt;
}

}  // namespace

void make_parents(Files& files, const std::string& path) { make_durable_folder(files, above(path)); }

std::string begin_folder(Files& files, const std::string& path) {
  make_parents(files, path);
  settle(files, path);
  abandon_folder(files, path);
  files.make_folder(unfinished(path));
  files.sync_folder(above(path));  // or a power loss takes it with everything that ranks have synced in it
  return unfinished(path);
}

void sync_files(Files& files, const std::string& unfinished) {
  std::vector<std::string> names;
  list_files(files, unfinished, "", names);
  std::set<std::string> folders{unfinished};
  for (const auto& name : names) {
    try {
      files.sync_file(unfinished + "/" + name);
    } catch (const FileError& error) {
      if (error.code() != ENOENT) throw;  // the temporary file of another rank, which syncs it
    }
    folders.insert(above(unfinished + "/" + name));
  }
  for (const auto& folder : folders) files.sync_folder(folder);
}

void publish_folder(Files& files, const std::string& path, Manifest manifest) {
  seal(files, unfinished(path), std::move(manifest));
  replace(files, path);
}

// Atomic, so that finish_folder never reads half a record.
void write_part(Files& files, const std::string& unfinished, int rank, const Manifest& part) {
  write_atomically(files, fmt::format("{}/{}{}.json", unfinished, kPart, rank), to_json(part));
}

// A folder with a manifest is complete, and so is one with the parts of all ranks. Each step leaves a state in which
// this can be called again, so that it may be interrupted, too.
bool finish_folder(Files& files, const std::string& path, const IsIntact& is_intact) {
  const auto folder = unfinished(path);
  auto manifest = manifest_in(files, folder + "/" + kManifestName);
  const bool is_sealed = manifest.has_value();
  if (!is_sealed) manifest = manifest_of_parts(files, folder);
  const bool is_complete =
      manifest && (is_intact ? is_intact(folder, *manifest) : has_files_of(files, folder, *manifest));
  if (!is_complete) {
    settle(files, path);
    return false;
  }
  if (!is_sealed) seal(files, folder, *std::move(manifest));
  replace(files, path);
  return true;
}

bool is_unfinished(Files& files, const std::string& path) {
  return is_folder(files, unfinished(path)) || is_folder(files, outdated(path));
}

// The names of folders in a listing end with '/'.
std::vector<std::string> unfinished_checkpoints(Files& files, const std::string& folder) {
  std::set<std::string> found;
  for (const auto& name : files.list(folder)) {
    const auto bare = std::string_view(name).substr(0, name.size() - 1);
    for (const auto ending : {kUnfinished, kOutdated}) {
      if (bare.starts_with(kPrefix) && bare.ends_with(ending))
        found.insert(fmt::format("{}/{}", folder, bare.substr(0, bare.size() - ending.size())));
    }
  }
  return {found.begin(), found.end()};
}

std::string lock_of(const std::string& path) {
  const bool is_numbered = number_of(std::filesystem::path(path).filename().string() + "/").has_value();
  return (is_numbered ? above(path) : path) + ".lock";
}

void abandon_folder(Files& files, const std::string& path) { remove_folder(files, unfinished(path)); }

std::optional<std::string> readable_folder(const std::string& path) {
  for (const auto& folder : {path, outdated(path)}) {
    if (std::filesystem::is_directory(folder)) return folder;
  }
  return std::nullopt;
}

std::vector<std::int64_t> checkpoint_numbers(Files& files, const std::string& folder) {
  std::vector<std::int64_t> numbers;
  for (const auto& name : files.list(folder)) {
    if (const auto number = number_of(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// A folder is renamed before it is removed, so that a crash in between leaves a name which nobody takes for a
// checkpoint. Remains of earlier crashes are removed here too.
void remove_oldest(Files& files, const std::string& folder, int total_limit, std::int64_t kept) {
  const auto path_of = [&](std::int64_t number) { return fmt::format("{}/{}{}", folder, kPrefix, number); };
  for (const auto& name : files.list(folder)) {
    const auto bare = name.substr(0, name.size() - 1);
    if (name.starts_with(kPrefix) && (bare.ends_with(kUnfinished) || bare.ends_with(kRemoved)))
      remove_folder(files, folder + "/" + bare);
  }
  auto numbers = checkpoint_numbers(files, folder);
  std::erase(numbers, kept);
  for (auto left = std::ssize(numbers) + 1; left > total_limit && !numbers.empty(); --left) {
    const auto path = path_of(numbers.front());
    files.rename(path, removed(path));
    remove_folder(files, removed(path));
    numbers.erase(numbers.begin());
  }
}

}  // namespace accel::checkpoint
