#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/manifest.hpp"
#include "reference/core/files.hpp"

/// Creates checkpoint folders that are complete or absent, even if a process or the machine fails while writing.
///
///     const auto unfinished = begin_folder(files, "run/checkpoint_3");   // one process
///     ...every rank writes and syncs its files in `unfinished`...
///     publish_folder(files, "run/checkpoint_3", manifest);               // one process
///
/// `path`.tmp is the folder being written. `path`.old is the previous `path` while the new one replaces it. Thread
/// rule: one process at a time per path.
namespace accel::checkpoint {

/// Forwards to other Files and records what is written into one folder, for its manifest. The checksum is computed
/// while bytes pass through, so no file is read again. Thread rule: one thread at a time.
class RecordingFiles final : public Files {
 public:
  RecordingFiles(Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  /// Entries of the files that exist now, by name.
  [[nodiscard]] std::vector<ManifestEntry> entries() const;

  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path) override;
  [[nodiscard]] std::string read(const std::string& path) override { return files_.read(path); }
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& path) override { files_.make_folder(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }

 private:
  class File;

  Files& files_;
  std::string folder_;
  std::map<std::string, ManifestEntry> written_;  // by path
};

/// Returns the empty folder to write into. Removes the remains of an earlier crash; a `path`.old without a `path` gets
/// its name back.
std::string begin_folder(Files& files, const std::string& path);

/// Writes `manifest`, completed by files that it does not list, into the unfinished folder and gives it its final name.
/// Replaces an existing folder of that name; files that neither its manifest nor the new folder contains are moved to
/// the new folder.
void publish_folder(Files& files, const std::string& path, Manifest manifest);

/// Records that one of `num_ranks` ranks has written all its files into the unfinished folder. finish_folder needs
/// these records if the ranks cannot communicate again.
void write_part(Files& files, const std::string& unfinished, int rank, int num_ranks,
                const std::vector<ManifestEntry>& entries);

/// Publishes an unfinished folder if every rank has recorded its part, after a process that ended before publishing.
/// Returns whether it did.
bool finish_folder(Files& files, const std::string& path);
/// Calls finish_folder for all folders `folder`/checkpoint_k.
void finish_checkpoints(Files& files, const std::string& folder);

/// Removes the unfinished folder.
void abandon_folder(Files& files, const std::string& path);

/// Returns the folder to read: `path`, or `path`.old if a crash happened between the two renames. Throws
/// CheckpointError if neither exists.
[[nodiscard]] std::string readable_folder(const std::string& path);

/// Returns the numbers k of the folders `folder`/checkpoint_k in ascending order.
[[nodiscard]] std::vector<std::int64_t> checkpoint_numbers(Files& files, const std::string& folder);

/// Removes the checkpoints with the lowest numbers until `total_limit` are left. Never removes number `kept`.
void remove_oldest(Files& files, const std::string& folder, int total_limit, std::int64_t kept);

}  // namespace accel::checkpoint
