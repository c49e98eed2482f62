#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/manifest.hpp"
#include "reference/files/files.hpp"

/// Creates checkpoint folders that are complete or absent, even if a process or the machine fails while writing.
///
///     const auto unfinished = begin_folder(files, "run/checkpoint_3");   // one process
///     ...every rank writes and syncs its files in `unfinished`...
///     publish_folder(files, "run/checkpoint_3", manifest);               // one process
///
/// `path`.tmp is the folder being written; with a manifest it is complete. `path`.old is the previous `path` while the
/// new one replaces it. Whatever is on the disk after a crash, also of a process that was finishing the folders of an
/// earlier one, `finish_folder` and `readable_folder` find one complete folder, once there was one.
/// Thread rule: one process at a time per path, which `lock_of` makes sure.
namespace accel::checkpoint {

/// Creates the folders above `path`, so that they survive a power loss.
void make_parents(Files& files, const std::string& path);

/// Returns the empty folder to write into. Removes the remains of an earlier crash; a `path`.old without a `path` gets
/// its name back.
std::string begin_folder(Files& files, const std::string& path);

/// Syncs the files that hooks have created in the unfinished folder. Ranks may already write theirs.
void sync_files(Files& files, const std::string& unfinished);

/// Writes `manifest`, completed by files that it does not list, into the unfinished folder and gives it its final name.
/// Replaces an existing folder of that name; files that neither its manifest nor the new folder contains are moved to
/// the new folder. Throws FileError if `path` is not the new folder, or may not be after a power loss.
void publish_folder(Files& files, const std::string& path, Manifest manifest);

/// Records that a rank has written all its files, `part`, into the unfinished folder. finish_folder needs these records
/// if the ranks cannot communicate again.
void write_part(Files& files, const std::string& unfinished, int rank, const Manifest& part);

/// Whether the files of a folder have the sizes and contents of a manifest.
using IsIntact = std::function<bool(const std::string& folder, const Manifest& manifest)>;
/// Completes what a process that ended has left: publishes the unfinished folder if it is complete or every rank has
/// recorded its part, and if it is intact (null: if its files exist); ends a replacement. Returns whether it published.
bool finish_folder(Files& files, const std::string& path, const IsIntact& is_intact = nullptr);
/// Whether finish_folder may have something to do.
[[nodiscard]] bool is_unfinished(Files& files, const std::string& path);
/// Returns the folders `folder`/checkpoint_k for which is_unfinished is true.
[[nodiscard]] std::vector<std::string> unfinished_checkpoints(Files& files, const std::string& folder);

/// Returns the lock file of the process that writes `path`: `path`.lock, for folders checkpoint_k that of the folder
/// above them.
[[nodiscard]] std::string lock_of(const std::string& path);

/// Removes the unfinished folder.
void abandon_folder(Files& files, const std::string& path);

/// Returns the folder to read: `path`, or `path`.old if a crash happened between the two renames; nothing if neither
/// exists.
[[nodiscard]] std::optional<std::string> readable_folder(const std::string& path);

/// Returns the numbers k of the folders `folder`/checkpoint_k in ascending order.
[[nodiscard]] std::vector<std::int64_t> checkpoint_numbers(Files& files, const std::string& folder);

/// Removes the checkpoints with the lowest numbers until `total_limit` are left. Never removes number `kept`.
void remove_oldest(Files& files, const std::string& folder, int total_limit, std::int64_t kept);

}  // namespace accel::checkpoint
