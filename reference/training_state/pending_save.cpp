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

// Returns what went wrong; "" if the folder has its final name.
std::string publish(Files& files, const PendingSave& save, int rank, checkpoint::Manifest manifest,
                    const std::vector<PackedWritten>& all) {
  const bool is_whole =
      std::all_of(all.begin(), all.end(), [](const auto& of_rank) { return std::get<2>(of_rank).empty(); });
  std::string problem;
  if (is_whole) {
    problem = problem_of([&] {
      for (const auto& [machine, entries, unused] : all) {
        if (save.save_on_each_node && machine != rank) continue;
        for (const auto& [name, bytes, checksum] : entries) manifest.files.push_back({name, bytes, checksum});
      }
      checkpoint::publish_folder(files, save.folder, std::move(manifest));
    });
    if (problem.empty()) return "";
  }
  const auto also = problem_of([&] { checkpoint::abandon_folder(files, save.folder); });
  return problem + (problem.empty() || also.empty() ? "" : "; ") + also;
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

// Old checkpoints are removed once every rank has published. If that fails, the new one is saved nevertheless.
void conclude(RankContext& context, PendingSave& save) {
  const auto written = save.written.get();
  PackedEntries own;
  for (const auto& entry : written.entries) own.emplace_back(entry.name, entry.bytes, entry.checksum);
  const auto all = gather_object(
      context, std::vector<PackedWritten>{{context.rank - context.local_rank, std::move(own), written.problem}});
  auto problem = written.problem;
  if (save.creates_folders) {
    const auto publishing = publish(*context.files, save, context.rank, {.world_size = context.world_size}, all);
    if (problem.empty()) problem = publishing;
  }
  agree(context, fmt::format("save_state: {}: not saved", save.folder), problem);
  if (!save.creates_folders || !save.number || !save.total_limit) return;
  const auto removing = problem_of(
      [&] { checkpoint::remove_oldest(*context.files, save.checkpoints_folder, *save.total_limit, *save.number); });
  if (!removing.empty())
    context.warn(
        fmt::format("save_state: {} is saved, but older checkpoints could not be removed: {}", save.folder, removing));
}

}  // namespace accel
