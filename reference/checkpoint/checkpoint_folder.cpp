// Crash safety of checkpoint folders. A rename is the only atomic step that a file system offers, and it lasts only
// after the parent folder is synced. So files are synced first, then folders from the inside out, then the rename, then
// the parent. After a crash at any point, either the old or the new folder is complete.
#include "reference/checkpoint/checkpoint_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

namespace accel::checkpoint {
namespace {

constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::string_view kPart = "accel_part_";

std::string unfinished(const std::string& path) { return path + ".tmp"; }
std::string outdated(const std::string& path) { return path + ".old"; }
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

// Only for small files of hooks: it reads the complete file into memory.
ManifestEntry entry_of(Files& files, const std::string& folder, const std::string& name) {
  const auto bytes = files.read(folder + "/" + name);
  Checksum checksum;
  checksum.update(bytes);
  return {.name = name, .bytes = std::ssize(bytes), .checksum = checksum.hex()};
}

// Adds files that hooks of the program have created. Nothing recorded them, so they are read for their checksum.
void add_unlisted(Files& files, const std::string& folder, Manifest& manifest) {
  std::vector<std::string> names;
  list_files(files, folder, "", names);
  for (const auto& name : names) {
    if (!manifest.lists(name) && !name.starts_with(kPart)) manifest.files.push_back(entry_of(files, folder, name));
  }
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

// Whether load_state reads the file or folder, in a checkpoint that Python wrote without a manifest.
bool is_python_state(std::string_view name) {
  if (name.ends_with('/')) return name.starts_with("pytorch_model_fsdp_") || name.starts_with("optimizer_");
  return (name.starts_with("model") && name.ends_with(".safetensors")) ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin")) ||
         (name.starts_with("custom_checkpoint_") && name.ends_with(".pkl"));
}

// Moves files that the program itself has put into the old folder (notes, plots) to the new one. Files of the old
// manifest are ours, and Python's would be loaded in place of the new ones: both are dropped. Names that the new folder
// has are not overwritten.
void keep_user_files(Files& files, const std::string& from, const std::string& to) {
  const auto manifest = is_file(files, from + "/" + kManifestName)
                            ? manifest_of(files.read(from + "/" + kManifestName), from)
                            : Manifest();
  const auto taken = files.list(to);
  for (const auto& name : files.list(from)) {
    const auto bare = name.ends_with('/') ? name.substr(0, name.size() - 1) : name;
    const bool is_ours = name == kManifestName || name.starts_with(kPart) || is_python_state(name) ||
                         std::any_of(manifest.files.begin(), manifest.files.end(), [&](const auto& entry) {
                           return entry.name == name || (name.ends_with('/') && entry.name.starts_with(name));
                         });
    if (!is_ours && std::find(taken.begin(), taken.end(), name) == taken.end())
      files.rename(from + "/" + bare, to + "/" + bare);
  }
}

void remove_parts(Files& files, const std::string& folder) {
  for (const auto& name : files.list(folder)) {
    if (name.starts_with(kPart)) files.remove(folder + "/" + name);
  }
}

}  // namespace

class RecordingFiles::File final : public WritableFile {
 public:
  File(RecordingFiles& files, const std::string& path) : files_(files), path_(path), file_(files.files_.create(path)) {}

  void append(std::string_view bytes) override {
    file_->append(bytes);
    checksum_.update(bytes);
    size_ += std::ssize(bytes);
  }
  void sync() override { file_->sync(); }
  // Recorded only on close: a file that failed half-way must not be in the manifest.
  void close() override {
    file_->close();
    const auto name = std::filesystem::path(path_).lexically_relative(files_.folder_).string();
    files_.written_[path_] = {.name = name, .bytes = size_, .checksum = checksum_.hex()};
  }

 private:
  RecordingFiles& files_;
  const std::string path_;
  std::unique_ptr<WritableFile> file_;
  Checksum checksum_;
  std::int64_t size_ = 0;
};

std::vector<ManifestEntry> RecordingFiles::entries() const {
  std::vector<ManifestEntry> entries;
  for (const auto& [path, entry] : written_) entries.push_back(entry);
  return entries;
}

std::unique_ptr<WritableFile> RecordingFiles::create(const std::string& path) {
  return std::make_unique<File>(*this, path);
}

// write_atomically writes to a temporary name and renames, so the entry follows the rename.
void RecordingFiles::rename(const std::string& from, const std::string& to) {
  files_.rename(from, to);
  auto moved = written_.extract(from);
  if (moved.empty()) return;
  moved.key() = to;
  moved.mapped().name = std::filesystem::path(to).lexically_relative(folder_).string();
  written_.erase(to);
  written_.insert(std::move(moved));
}

void RecordingFiles::remove(const std::string& path) {
  files_.remove(path);
  written_.erase(path);
}

// `path`.old exists only if a crash interrupted publish_folder. With a `path` the new folder won, and only clean-up is
// missing; without it the first rename happened alone, so it is undone.
std::string begin_folder(Files& files, const std::string& path) {
  make_durable_folder(files, above(path));
  const bool has_successor = is_folder(files, path);
  if (is_folder(files, outdated(path))) {
    if (has_successor) {
      keep_user_files(files, outdated(path), path);
      remove_folder(files, outdated(path));
    } else {
      files.rename(outdated(path), path);
      files.sync_folder(above(path));
    }
  }
  abandon_folder(files, path);
  files.make_folder(unfinished(path));
  return unfinished(path);
}

// The manifest is written after all other files, which syncs their names, too. Parts are removed after the rename,
// since finish_folder needs them if a crash happens before it.
void publish_folder(Files& files, const std::string& path, Manifest manifest) {
  const auto folder = unfinished(path), parent = above(path);
  add_unlisted(files, folder, manifest);
  write_atomically(files, folder + "/" + kManifestName, to_json(manifest));
  std::set<std::string> inner;
  for (const auto& entry : manifest.files) {
    for (auto within = std::filesystem::path(entry.name).parent_path(); !within.empty(); within = within.parent_path())
      inner.insert(within.string());
  }
  for (const auto& within : inner) files.sync_folder(folder + "/" + within);
  const bool replaces = is_folder(files, path);
  if (replaces) files.rename(path, outdated(path));
  files.rename(folder, path);
  files.sync_folder(parent);
  remove_parts(files, path);
  if (!replaces) return;
  keep_user_files(files, outdated(path), path);
  remove_folder(files, outdated(path));
  files.sync_folder(parent);
}

// Atomic, so that finish_folder never reads half a record.
void write_part(Files& files, const std::string& unfinished, int rank, int num_ranks,
                const std::vector<ManifestEntry>& entries) {
  write_atomically(files, fmt::format("{}/{}{}.json", unfinished, kPart, rank),
                   to_json({.world_size = num_ranks, .files = entries}));
}

bool finish_folder(Files& files, const std::string& path) {
  Manifest manifest{.world_size = 0, .files = {}};
  int num_parts = 0;
  for (const auto& name : files.list(unfinished(path))) {
    if (!name.starts_with(kPart) || !name.ends_with(".json")) continue;
    const auto part = manifest_of(files.read(unfinished(path) + "/" + name), unfinished(path) + "/" + name);
    manifest.world_size = part.world_size;
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    ++num_parts;
  }
  // A part is missing: a rank was still writing, and the checkpoint is incomplete.
  if (num_parts == 0 || num_parts < manifest.world_size) return false;
  publish_folder(files, path, std::move(manifest));
  return true;
}

// The names in a listing end with '/' for folders, which is dropped before comparing.
void finish_checkpoints(Files& files, const std::string& folder) {
  for (const auto& name : files.list(folder)) {
    const auto bare = std::string_view(name).substr(0, name.size() - 1);
    if (name.starts_with(kPrefix) && bare.ends_with(".tmp"))
      finish_folder(files, folder + "/" + std::string(bare.substr(0, bare.size() - 4)));
  }
}

void abandon_folder(Files& files, const std::string& path) { remove_folder(files, unfinished(path)); }

std::string readable_folder(const std::string& path) {
  if (std::filesystem::is_directory(path)) return path;
  if (std::filesystem::is_directory(outdated(path))) return outdated(path);
  throw CheckpointError(fmt::format("{}: the folder does not exist; expected the folder of a checkpoint", path));
}

std::vector<std::int64_t> checkpoint_numbers(Files& files, const std::string& folder) {
  std::vector<std::int64_t> numbers;
  for (const auto& name : files.list(folder)) {
    if (const auto number = number_of(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// A folder is renamed before it is removed, so that a crash in between leaves a ".tmp", which nobody takes for a
// checkpoint. Remains of earlier crashes are removed here too.
void remove_oldest(Files& files, const std::string& folder, int total_limit, std::int64_t kept) {
  const auto path_of = [&](std::int64_t number) { return fmt::format("{}/{}{}", folder, kPrefix, number); };
  for (const auto& name : files.list(folder)) {
    if (name.starts_with(kPrefix) && name.ends_with(".tmp/"))
      remove_folder(files, folder + "/" + name.substr(0, name.size() - 1));
  }
  auto numbers = checkpoint_numbers(files, folder);
  std::erase(numbers, kept);
  for (auto left = std::ssize(numbers) + 1; left > total_limit && !numbers.empty(); --left) {
    const auto path = path_of(numbers.front());
    files.rename(path, unfinished(path));
    remove_folder(files, unfinished(path));
    numbers.erase(numbers.begin());
  }
}

}  // namespace accel::checkpoint
