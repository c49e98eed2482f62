// Note [Checkpoint folders]
// Ranks write into "FOLDER.tmp". When all files are complete and synced, one rank writes the manifest and renames the
// folder, so a folder with its final name is always complete. Every step that can fail on one rank only is followed by
// agree(), which shares the problem. Otherwise the failing rank would throw and the others would wait in the next
// collective.
#include "reference/training_state/checkpointing.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <map>

#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/safetensors.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/warnings.hpp"
#include "reference/training_state/state_files.hpp"

namespace accel {
namespace {

// The ".tmp" of an unfinished folder is appended to the path, so "run/" must become "run".
std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

using checkpoint::StateFile;

// Runs `act` and returns the message of an error that all ranks must learn of: of the file system, or of contents that
// do not match. Other exceptions are mistakes in the program and end this rank.
template <typename Act>
std::string problem_of(const Act& act) {
  try {
    act();
  } catch (const FileError& error) {
    return error.what();
  } catch (const CheckpointError& error) {
    return error.what();
  } catch (const ArgumentError& error) {  // a value that cannot be stored in a file
    return error.what();
  } catch (const std::filesystem::filesystem_error& error) {  // a folder without permission
    return error.what();
  }
  return "";
}

struct Written {
  std::vector<checkpoint::ManifestEntry> entries;
  std::string problem;
};

Written write_all(Files& files, const std::string& folder, const std::vector<StateFile>& contents) {
  checkpoint::RecordingFiles recording(files, folder);
  Written written;
  written.problem = problem_of([&] {
    for (const auto& content : contents) checkpoint::write(recording, folder, content);
  });
  written.entries = recording.entries();
  return written;
}

// For asynchronous saves. Each rank also writes a record of its files, from which a later run can publish the folder if
// the program ends before finish().
Written write_part(Files& files, const std::string& folder, const std::vector<StateFile>& contents, int rank,
                   int num_ranks) {
  auto written = write_all(files, folder, contents);
  if (written.problem.empty())
    written.problem = problem_of([&] { checkpoint::write_part(files, folder, rank, num_ranks, written.entries); });
  return written;
}

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const TrainingState& state) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& model : state.models) modules.push_back(model->module());
  return modules;
}

// The result of one rank's writes in the form that gather_object sends: machine (its first rank), entries, problem.
using PackedEntries = std::vector<std::tuple<std::string, std::int64_t, std::string>>;
using PackedWritten = std::tuple<int, PackedEntries, std::string>;

}  // namespace

// A save whose files this rank is writing, or has written.
struct Checkpointing::Pending {
  std::string folder;
  std::optional<std::int64_t> number;  // under automatic naming
  std::future<Written> written;
};

Checkpointing::Checkpointing(RankContext& context, ProjectConfiguration config)
    : context_(context), config_(std::move(config)) {}
// The future comes from std::async, so its destructor waits for the writer. The folder keeps its ".tmp" name.
Checkpointing::~Checkpointing() = default;

bool Checkpointing::creates_folders() const {
  return context_.rank == 0 || (config_.save_on_each_node && context_.local_rank == 0);
}

std::string Checkpointing::folder_to_save(const std::string& output_dir) const {
  if (!config_.automatic_checkpoint_naming) {
    check_argument(!output_dir.empty(),
                   "save_state: no output directory; pass one, or set automatic_checkpoint_naming in project_config");
    return without_trailing_slashes(output_dir);
  }
  return fmt::format("{}/checkpoint_{}", checkpoints_folder(), config_.iteration);
}

// Equal problems of several ranks are reported once, with the ranks that have them.
void Checkpointing::agree(const std::string& what, const std::string& problem) const {
  std::map<std::string, std::vector<std::size_t>> ranks_of;
  const auto problems = gather_object(context_, std::vector<std::string>{problem});
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) ranks_of[problems[rank]].push_back(rank);
  }
  if (ranks_of.empty()) return;
  std::vector<std::string> texts;
  for (const auto& [text, ranks] : ranks_of) {
    const bool on_all_ranks = ranks.size() == problems.size();
    texts.push_back(on_all_ranks ? text : fmt::format("rank {}: {}", fmt::join(ranks, ", "), text));
  }
  throw CheckpointError(fmt::format("{}: {}", what, fmt::join(texts, "; ")));
}

// Creates the empty folder for the ranks' files and returns its path.
std::string Checkpointing::begin(const std::string& folder) const {
  std::string problem;
  if (creates_folders()) {
    problem = problem_of([&] {
      if (config_.automatic_checkpoint_naming && is_folder(*context_.files, folder)) {
        throw CheckpointError(
            fmt::format("{} already exists; set save_iteration to the number of the next checkpoint", folder));
      }
      checkpoint::begin_folder(*context_.files, folder);
    });
  }
  agree("save_state", problem);
  return folder + ".tmp";
}

// The order is fixed: an earlier asynchronous save first, checks before the first collective, weights before hooks (a
// hook may clear them), and copies last, so that training may change tensors as soon as an asynchronous save returns.
std::string Checkpointing::save(TrainingState& state, const std::string& output_dir, SaveStateOptions options) {
  finish();
  const bool is_sharded =
      std::any_of(state.models.begin(), state.models.end(), [](const auto& model) { return model->is_sharded(); });
  check_argument(!is_sharded || !config_.save_on_each_node,
                 "save_state: save_on_each_node does not support sharded models, since no machine has the complete "
                 "model; save to a file system that all ranks share");
  const auto folder = folder_to_save(output_dir);
  auto weights = checkpoint::weights_of(state);
  const auto unfinished = begin(folder);
  const auto models = modules_of(state);
  for (const auto& hook : save_hooks) hook(models, weights, unfinished);
  std::vector<StateFile> contents;
  try {
    contents = checkpoint::files_of_rank(
        state, context_, weights,
        {.safe_serialization = options.safe_serialization, .save_on_each_node = config_.save_on_each_node});
  } catch (...) {
    if (creates_folders()) checkpoint::abandon_folder(*context_.files, folder);
    throw;
  }
  if (options.async) {
    for (auto& content : contents) content = checkpoint::copied(content);
  }
  pending_ = std::make_unique<Pending>(
      Pending{.folder = folder,
              .number = config_.automatic_checkpoint_naming ? std::optional(config_.iteration) : std::nullopt,
              .written = {}});
  auto write = [files = context_.files, unfinished, contents = std::move(contents), rank = context_.rank,
                num_ranks = config_.save_on_each_node ? context_.local_world_size : context_.world_size,
                async = options.async] {
    return async ? write_part(*files, unfinished, contents, rank, num_ranks) : write_all(*files, unfinished, contents);
  };
  // A synchronous save runs deferred, on this thread, in finish() below: both kinds share one path.
  pending_->written = std::async(options.async ? std::launch::async : std::launch::deferred, std::move(write));
  ++config_.iteration;
  if (!options.async) finish();
  return folder;
}

void Checkpointing::finish() {
  if (const auto pending = std::exchange(pending_, nullptr)) conclude(*pending);
}

// Gathers what every rank has written, then publishes or removes the folder. Old checkpoints are removed only after the
// new one has its name, so total_limit never leaves fewer than before.
void Checkpointing::conclude(Pending& pending) {
  const auto written = pending.written.get();
  PackedEntries own;
  for (const auto& entry : written.entries) own.emplace_back(entry.name, entry.bytes, entry.checksum);
  const auto all = gather_object(
      context_, std::vector<PackedWritten>{{context_.rank - context_.local_rank, std::move(own), written.problem}});
  const bool is_whole =
      std::all_of(all.begin(), all.end(), [](const auto& of_rank) { return std::get<2>(of_rank).empty(); });
  auto& files = *context_.files;
  std::string publishing;
  if (creates_folders()) {
    publishing = problem_of([&] {
      if (!is_whole) return checkpoint::abandon_folder(files, pending.folder);
      checkpoint::Manifest manifest{.world_size = context_.world_size, .files = {}};
      for (const auto& [machine, entries, problem] : all) {
        if (config_.save_on_each_node && machine != context_.rank) continue;
        for (const auto& [name, bytes, checksum] : entries) manifest.files.push_back({name, bytes, checksum});
      }
      checkpoint::publish_folder(files, pending.folder, std::move(manifest));
      if (pending.number && config_.total_limit)
        checkpoint::remove_oldest(files, checkpoints_folder(), *config_.total_limit, *pending.number);
    });
  }
  agree(fmt::format("save_state: {}: not saved", pending.folder),
        !written.problem.empty() ? written.problem : publishing);
}

void Checkpointing::save_model(const NamedTensors& weights, const std::string& save_directory,
                               const SaveModelOptions& options) const {
  const WeightsPlanOptions plan{.max_shard_bytes = parse_size(options.max_shard_size),
                                .safe_serialization = options.safe_serialization};
  NamedTensors present;
  std::vector<std::string> absent, repeated;
  for (const auto& [name, tensor] : weights) {
    if (tensor.is_meta())
      absent.push_back(name);
    else
      present.emplace_back(name, tensor);
  }
  agree("save_model", problem_of([&] {
          if (!creates_folders()) return;
          for (const auto& [name, kept] : write_weights(*context_.files, save_directory, present, plan))
            repeated.push_back(fmt::format("'{}' as '{}'", name, kept));
        }));
  // Source: accelerate/utils/modeling.py, get_state_dict_offloaded_model; accelerate/utils/other.py,
  // clean_state_dict_for_safetensors.
  if (!absent.empty() && context_.rank == 0)
    warn_once(context_,
              fmt::format("save_model: on the meta device, and therefore not saved: {}", fmt::join(absent, ", ")));
  if (!repeated.empty() && context_.rank == 0)
    warn_once(context_,
              fmt::format("save_model: shared tensors are saved under one name: {}", fmt::join(repeated, ", ")));
}

void Checkpointing::save_object(const Value& object, const std::string& file) const {
  if (creates_folders()) accel::write_torch_file(*context_.files, file, object);
}

void Checkpointing::save_object(const NamedTensors& tensors, const std::string& file, bool safe_serialization) const {
  if (!creates_folders()) return;
  if (safe_serialization)
    write_safetensors(*context_.files, file, deduplicate_shared(tensors).tensors, {{"format", "pt"}});
  else
    accel::write_torch_file(*context_.files, file, tensors);
}

std::string Checkpointing::newest_folder() const {
  const auto numbers = checkpoint::checkpoint_numbers(*context_.files, checkpoints_folder());
  if (numbers.empty()) throw CheckpointError(fmt::format("{}: contains no checkpoint", checkpoints_folder()));
  return fmt::format("{}/checkpoint_{}", checkpoints_folder(), numbers.back());
}

// Completes folders that an asynchronous save left behind before it looks for the newest one.
Checkpointing::Found Checkpointing::find(const std::string& input_dir) const {
  Found found;
  auto& files = *context_.files;
  if (config_.automatic_checkpoint_naming) checkpoint::finish_checkpoints(files, checkpoints_folder());
  if (!input_dir.empty()) checkpoint::finish_folder(files, input_dir);
  found.folder = input_dir.empty() ? newest_folder() : checkpoint::readable_folder(input_dir);
  if (const auto manifest = checkpoint::read_manifest(found.folder)) found.saved_ranks = manifest->world_size;
  const auto numbers = config_.automatic_checkpoint_naming ? checkpoint::checkpoint_numbers(files, checkpoints_folder())
                                                           : std::vector<std::int64_t>();
  if (!numbers.empty()) found.next = numbers.back() + 1;
  return found;
}

// Only one process searches and verifies checksums; the others get its result. On a shared file system every rank might
// otherwise see another state, and all would read everything.
Checkpointing::Found Checkpointing::find_on_one_rank(const std::string& input_dir) const {
  Found found;
  std::string problem;
  if (creates_folders()) problem = problem_of([&] { found = find(input_dir); });
  agree("load_state", problem);
  std::vector<std::tuple<std::string, int, std::int64_t>> shared{{found.folder, found.saved_ranks, found.next}};
  broadcast_object_list(context_, shared);
  return {std::get<0>(shared.front()), std::get<1>(shared.front()), std::get<2>(shared.front())};
}

// Calls the hooks and returns which models to load.
std::vector<bool> Checkpointing::call_load_hooks(const TrainingState& state, const std::string& folder) const {
  auto models = modules_of(state);
  for (const auto& hook : load_hooks) hook(models, folder);
  std::vector<bool> is_loaded;
  for (const auto& model : state.models)
    is_loaded.push_back(std::find(models.begin(), models.end(), model->module()) != models.end());
  return is_loaded;
}

std::string Checkpointing::load(TrainingState& state, const std::string& given_dir, const LoadStateOptions& options) {
  check_argument(options.inside_window == "keep" || options.inside_window == "drop",
                 "load_state: inside_window: expected keep or drop, got '{}'", options.inside_window);
  const auto input_dir = without_trailing_slashes(given_dir);
  finish();
  check_argument(!input_dir.empty() || config_.automatic_checkpoint_naming,
                 "load_state: no input directory; pass one, or set automatic_checkpoint_naming in project_config");
  const auto found = find_on_one_rank(input_dir);
  const auto is_loaded = call_load_hooks(state, found.folder);
  std::unique_ptr<checkpoint::StateLoad> loading;
  agree("load_state", problem_of([&] {
          loading = std::make_unique<checkpoint::StateLoad>(
              state, context_, found.folder, found.saved_ranks > 0 ? std::optional(found.saved_ranks) : std::nullopt,
              is_loaded, options);
        }));
  // Every rank has read and checked everything; from here on nothing can fail.
  loading->commit();
  for (const auto& entry : state.loaders) {
    if (const auto loader = entry.lock()) loader->agree_on_position();
  }
  if (config_.automatic_checkpoint_naming) config_.iteration = found.next;
  return found.folder;
}

}  // namespace accel
