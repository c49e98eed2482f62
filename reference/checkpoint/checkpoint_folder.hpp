#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/manifest.hpp"
#include "reference/core/files.hpp"

/// A checkpoint folder that is whole or not there, whatever happens while it is written.
///
///     const auto unfinished = begin_folder(files, "run/checkpoint_3");   // one process
///     ...every rank writes its files into `unfinished`, synced...
///     publish_folder(files, "run/checkpoint_3", manifest);               // one process
///
/// `path`.tmp is what is being written; `path`.old is what `path` was, while the new one takes its name. Thread rule:
/// one process at a time for a path.
namespace accel::checkpoint {

/// Files that remember what was written into one folder, for its manifest. Thread rule: one thread at a time.
class RecordingFiles final : public Files {
 public:
  RecordingFiles(Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  /// Of the files that are there now, by name.
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

/// The folder to write into, empty; what a crash has left of an earlier one is removed, and an old one without a
/// successor gets its name back.
std::string begin_folder(Files& files, const std::string& path);

/// The folder that was begun takes its name, with `manifest` in it, to which files that it does not list are added. One
/// that had the name is removed; what its own manifest does not list, and the new one has not, is kept in the new one.
void publish_folder(Files& files, const std::string& path, Manifest manifest);

/// One rank has written all its files into the folder that was begun, of `num_ranks` ranks that do: what finish_folder
/// needs to know where ranks do not meet again.
void write_part(Files& files, const std::string& unfinished, int rank, int num_ranks,
                const std::vector<ManifestEntry>& entries);

/// Publishes a folder into which every rank has written its part, after a process that ended before it did; returns
/// whether there was one.
bool finish_folder(Files& files, const std::string& path);
/// All of those `folder`/checkpoint_k.
void finish_checkpoints(Files& files, const std::string& folder);

/// Removes what was begun.
void abandon_folder(Files& files, const std::string& path);

/// Where `path` is to be read from: `path`, or `path`.old where a crash came between. Throws CheckpointError if there
/// is none.
[[nodiscard]] std::string readable_folder(const std::string& path);

/// The numbers k of folders `folder`/checkpoint_k, in order.
[[nodiscard]] std::vector<std::int64_t> checkpoint_numbers(Files& files, const std::string& folder);

/// Removes the checkpoints of the lowest numbers, until `total_limit` are left; never that of the number `kept`.
void remove_oldest(Files& files, const std::string& folder, int total_limit, std::int64_t kept);

}  // namespace accel::checkpoint
