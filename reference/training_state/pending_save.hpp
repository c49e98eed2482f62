#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/checkpoint/manifest.hpp"
#include "reference/files/lock_file.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/state_files.hpp"

/// A save whose files this rank is writing, or has written, into the unfinished folder.
///
///     PendingSave save{.folder = "run/state", .creates_folders = rank == 0};
///     save.written = std::async(std::launch::async, [&] { return write_rank_files(files, "run/state.tmp", contents);
///     });
///     conclude(context, save);
///
/// Thread rule: the rank's thread, except for the functions that write.
namespace accel {

/// What a rank has written.
struct WrittenFiles {
  std::vector<checkpoint::ManifestEntry> entries = {};
  std::string problem = {};  ///< "" if everything is written
};

struct PendingSave {
  std::string folder = {};
  bool creates_folders = false;  ///< whether this rank does
  bool save_on_each_node = false;
  std::string checkpoints_folder = {};  ///< under automatic naming, as are the next two
  std::optional<std::int64_t> number = {};
  std::optional<int> total_limit = {};
  std::shared_ptr<const LockFile> lock = {};  ///< null on ranks that create no folders
  std::future<WrittenFiles> written = {};     ///< of std::async, so that the destructor waits for the writer
};

/// Writes this rank's files into a folder.
WrittenFiles write_rank_files(Files& files, const std::string& folder,
                              const std::vector<checkpoint::StateFile>& contents);
/// The same, and a record of them, from which a later run can publish the folder if the program ends before `conclude`.
WrittenFiles write_rank_part(Files& files, const std::string& folder,
                             const std::vector<checkpoint::StateFile>& contents, int rank, checkpoint::Manifest part);

/// Gathers what every rank has written, then publishes or removes the folder. Old checkpoints are removed only after
/// the new one has its name, so total_limit never leaves fewer than before. Throws CheckpointError on every rank if the
/// folder was not published. Collective.
void conclude(RankContext& context, PendingSave& save);

}  // namespace accel
