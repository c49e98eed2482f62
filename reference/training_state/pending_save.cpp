#include "reference/training_state/pending_save.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/recording_files.hpp"
#include "reference/state/objects.hpp"
#include "reference/training_state/rank_problem.hpp"

namespace accel {
namespace {

// The result of one rank's writes in the form that gather_object sends: machine (its first rank), entries, problem.
using PackedEntries = std::vector<std::tuple<std::string, std::int64_t, std::string>>;
using PackedWritten = std::tuple<int, PackedEntries, std::string>;

// Whether the folder was published, and what went wrong.
struct Published {
  bool is_saved = false;
  std::string problem;
};

Published publish(RankContext& context, const PendingSave& save, const std::vector<PackedWritten>& all) {
  auto& files = *context.files;
  Published published;
  const bool is_whole =
      std::all_of(all.begin(), all.end(), [](const auto& of_rank) { return std::get<2>(of_rank).empty(); });
  if (is_whole) {
    published.problem = problem_of([&] {
      checkpoint::Manifest manifest{.world_size = context.world_size};
      for (const auto& [machine, entries, problem] : all) {
        if (save.save_on_each_node && machine != context.rank) continue;
        for (const auto& [name, bytes, checksum] : entries) manifest.files.push_back({name, bytes, checksum});
      }
      checkpoint::publish_folder(files, save.folder, std::move(manifest));
      published.is_saved = true;
      if (save.number && save.total_limit)
        checkpoint::remove_oldest(files, save.checkpoints_folder, *save.total_limit, *save.number);
    });
  }
  if (!published.is_saved) {
    const auto also = problem_of([&] { checkpoint::abandon_folder(files, save.folder); });
    if (!also.empty()) published.problem += (published.problem.empty() ? "" : "; ") + also;
  }
  return published;
}

}  // namespace

WrittenFiles write_rank_files(Files& files, const std::string& folder,
                              const std::vector<checkpoint::StateFile>& contents) {
  checkpoint::RecordingFiles recording(files, folder);
  WrittenFiles written;
  written.problem = problem_of([&] {
    for (const auto& content : contents) checkpoint::write(recording, folder, content);
  });
  written.entries = recording.entries();
  return written;
}

WrittenFiles write_rank_part(Files& files, const std::string& folder,
                             const std::vector<checkpoint::StateFile>& contents, int rank, checkpoint::Manifest part) {
  auto written = write_rank_files(files, folder, contents);
  part.files = written.entries;
  if (written.problem.empty()) written.problem = problem_of([&] { checkpoint::write_part(files, folder, rank, part); });
  return written;
}

// If only the removal of older checkpoints fails, the new one is saved.
void conclude(RankContext& context, PendingSave& save) {
  const auto written = save.written.get();
  PackedEntries own;
  for (const auto& entry : written.entries) own.emplace_back(entry.name, entry.bytes, entry.checksum);
  const auto all = gather_object(
      context, std::vector<PackedWritten>{{context.rank - context.local_rank, std::move(own), written.problem}});
  const auto published = save.creates_folders ? publish(context, save, all) : Published();
  if (published.is_saved && !published.problem.empty())
    context.warn(fmt::format("save_state: {} is saved, but older checkpoints could not be removed: {}", save.folder,
                             published.problem));
  agree(context, fmt::format("save_state: {}: not saved", save.folder),
        !written.problem.empty() ? written.problem
        : published.is_saved     ? ""
                                 : published.problem);
}
}  // namespace accel
