// Note [Checkpoint folders]
// Ranks write into "FOLDER.tmp". When all files are complete and synced, one rank writes the manifest and renames the
// folder, so a folder with its final name is always complete. Every step that can fail on one rank only is followed by
// agree(), which shares the problem. Otherwise the failing rank would throw and the others would wait in the next
// collective.
#include "reference/training_state/checkpointing.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <system_error>
#include <thread>

#include "reference/checkpoint/checkpoint_folder.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/lock_file.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/warnings.hpp"
#include "reference/training_state/pending_save.hpp"
#include "reference/training_state/rank_problem.hpp"
#include "reference/training_state/registered_state.hpp"
#include "reference/training_state/state_files.hpp"

namespace accel {
namespace {

// The ".tmp" of an unfinished folder is appended to the path, so "run/" must become "run".
std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

using checkpoint::StateFile;

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const TrainingState& state) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& model : state.models) modules.push_back(model->module());
  return modules;
}

}  // namespace

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

// Locks are kept until the Accelerator ends, so that a second program fails instead of this one. A program that saves
// every epoch under another name would need ever more files, so only those of the last saves are kept.
void Checkpointing::lock(const std::string& folder) {
  constexpr std::size_t kMaxLocks = 8;
  constexpr int kAttempts = 20;  // a program that only loads holds the lock for a moment
  const auto path = checkpoint::lock_of(folder);
  auto lock = LockFile::acquire(path);
  for (int attempt = 1; !lock && attempt < kAttempts; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lock = LockFile::acquire(path);
  }
  check_checkpoint(lock != nullptr, "{} is saving to {} ({}); end it, or choose another folder; nothing was changed",
                   LockFile::holder(path), folder, path);
  std::erase_if(locks_, [&](const auto& known) { return known.first == path; });
  locks_.emplace_front(path, std::move(lock));
  if (locks_.size() > kMaxLocks) locks_.pop_back();
}

// Creates the empty folder for the ranks' files and returns its path.
std::string Checkpointing::begin(const std::string& folder) {
  std::string problem;
  if (creates_folders()) {
    problem = problem_of([&] {
      checkpoint::make_parents(*context_.files, checkpoint::lock_of(folder));
      lock(folder);
      if (config_.automatic_checkpoint_naming && is_folder(*context_.files, folder)) {
        throw CheckpointError(
            fmt::format("{} already exists; set save_iteration to the number of the next checkpoint", folder));
      }
      checkpoint::begin_folder(*context_.files, folder);
    });
  }
  agree(context_, "save_state", problem);
  return folder + ".tmp";
}

// The order is fixed: an earlier asynchronous save first, checks before the first collective, weights before hooks (a
// hook may clear them), and copies last, so that training may change tensors as soon as an asynchronous save returns.
std::string Checkpointing::save(TrainingState& state, const std::string& output_dir, SaveStateOptions options) {
  finish();
  checkpoint::check_registered(state);
  for (const auto& model : state.models) model->check_buffers(context_);
  const bool is_shared_out = std::any_of(state.models.begin(), state.models.end(), [](const auto& model) {
    return model->is_sharded() || model->layouts().stages() != nullptr;
  });
  check_argument(
      !is_shared_out || !config_.save_on_each_node,
      "save_state: save_on_each_node does not support sharded models and pipelines, since no machine has the complete "
      "model; save to a file system that all ranks share");
  const auto folder = folder_to_save(output_dir);
  auto weights = checkpoint::weights_of(state);
  const auto unfinished = begin(folder);
  const auto models = modules_of(state);
  const auto hooks_problem = problem_of([&] {
    for (const auto& hook : save_hooks) hook(models, weights, unfinished);
  });
  if (!hooks_problem.empty() && creates_folders()) checkpoint::abandon_folder(*context_.files, folder);
  agree(context_, fmt::format("save_state: {}: not saved", folder), hooks_problem);
  std::vector<StateFile> contents;
  // An error of this rank alone is shared when the save is concluded.
  const auto problem = problem_of([&] {
    contents = checkpoint::files_of_rank(
        state, context_, weights,
        {.safe_serialization = options.safe_serialization, .save_on_each_node = config_.save_on_each_node});
    if (creates_folders()) checkpoint::sync_files(*context_.files, unfinished);
    if (!options.async) return;
    for (auto& content : contents) content = checkpoint::copied(content);
  });
  auto pending = std::make_shared<PendingSave>(
      PendingSave{.folder = folder,
                  .creates_folders = creates_folders(),
                  .save_on_each_node = config_.save_on_each_node,
                  .checkpoints_folder = checkpoints_folder(),
                  .number = config_.automatic_checkpoint_naming ? std::optional(config_.iteration) : std::nullopt,
                  .total_limit = config_.total_limit,
                  .lock = locks_.empty() ? nullptr : locks_.front().second});
  auto write = [problem, files = context_.files, unfinished, contents = std::move(contents), rank = context_.rank,
                part = checkpoint::Manifest{.world_size = context_.world_size,
                                            .num_parts = config_.save_on_each_node ? context_.local_world_size
                                                                                   : context_.world_size},
                async = options.async] {
    if (!problem.empty()) return WrittenFiles{.problem = problem};
    return async ? write_rank_part(*files, unfinished, contents, rank, part)
                 : write_rank_files(*files, unfinished, contents);
  };
  // A synchronous save runs deferred, on this thread, in finish() below: both kinds share one path. So does a save for
  // which the system gives no thread, in the finish() of the program.
  try {
    pending->written = std::async(options.async ? std::launch::async : std::launch::deferred, write);
  } catch (const std::system_error&) {
    pending->written = std::async(std::launch::deferred, write);
  }
  context_.unfinished_saves.emplace_back([&context = context_, pending] { conclude(context, *pending); });
  ++config_.iteration;
  if (!options.async) finish();
  return folder;
}

void Checkpointing::finish() { finish_saves(context_); }

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
  agree(context_, "save_model", problem_of([&] {
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

std::optional<std::string> Checkpointing::readable_folder(const std::string& input_dir) const {
  if (!input_dir.empty()) return checkpoint::readable_folder(input_dir);
  const auto numbers = checkpoint::checkpoint_numbers(*context_.files, checkpoints_folder());
  return numbers.empty() ? std::nullopt
                         : std::optional(fmt::format("{}/checkpoint_{}", checkpoints_folder(), numbers.back()));
}

// Completes folders that a process has left when it died, if no other process is at work there. An error there, for
// example on a disk that is mounted read-only, leaves the older checkpoint to be loaded.
void Checkpointing::recover(const std::string& input_dir) const {
  auto& files = *context_.files;
  auto folders = config_.automatic_checkpoint_naming ? checkpoint::unfinished_checkpoints(files, checkpoints_folder())
                                                     : std::vector<std::string>();
  if (!input_dir.empty() && checkpoint::is_unfinished(files, input_dir)) folders.push_back(input_dir);
  const auto is_intact = [](const std::string& folder, const checkpoint::Manifest& manifest) {
    return checkpoint::damages(folder, manifest).empty();
  };
  for (const auto& folder : folders) {
    const auto problem = problem_of([&] {
      const auto lock = LockFile::acquire(checkpoint::lock_of(folder));
      if (lock) checkpoint::finish_folder(files, folder, is_intact);
    });
    if (!problem.empty())
      context_.warn(fmt::format("{}: an unfinished save could not be completed: {}", folder, problem));
  }
}

Checkpointing::Found Checkpointing::find(const std::string& input_dir, const LoadStateOptions& options) const {
  Found found;
  auto& files = *context_.files;
  recover(input_dir);
  const auto folder = readable_folder(input_dir);
  if (!folder)
    throw CheckpointError(
        input_dir.empty()
            ? fmt::format("{}: contains no checkpoint", checkpoints_folder())
            : fmt::format("{}: the folder does not exist; expected the folder of a checkpoint", input_dir));
  found.folder = *folder;
  if (const auto manifest = checkpoint::read_manifest(found.folder)) {
    found.saved_ranks = manifest->world_size;
  } else if (checkpoint::is_of_accel(found.folder)) {
    const auto missing = fmt::format(
        "{}: accel wrote this checkpoint, and its {} is missing, so that its files cannot "
        "be verified",
        found.folder, checkpoint::kManifestName);
    check_checkpoint(options.allow_missing_manifest,
                     "{}; copy it again, or load it as it is with {{.allow_missing_manifest = true}}", missing);
    context_.warn("load_state: " + missing);
  }
  const auto numbers = config_.automatic_checkpoint_naming ? checkpoint::checkpoint_numbers(files, checkpoints_folder())
                                                           : std::vector<std::int64_t>();
  if (!numbers.empty()) found.next = numbers.back() + 1;
  return found;
}

// Only one process searches and verifies checksums; the others get its result. On a shared file system every rank might
// otherwise see another state, and all would read everything.
Checkpointing::Found Checkpointing::find_on_one_rank(const std::string& input_dir,
                                                     const LoadStateOptions& options) const {
  using Packed = std::tuple<std::string, int, std::int64_t>;
  const auto [folder, saved_ranks, next] =
      result_of_one_rank<Packed>(context_, "load_state", creates_folders(), [&]() -> Packed {
        const auto found = find(input_dir, options);
        return {found.folder, found.saved_ranks, found.next};
      });
  return {folder, saved_ranks, next};
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

std::string Checkpointing::folder_to_load(const std::string& function, const std::string& input_dir) const {
  check_argument(!input_dir.empty() || config_.automatic_checkpoint_naming,
                 "{}: no input directory; pass one, or set automatic_checkpoint_naming in project_config", function);
  return without_trailing_slashes(input_dir);
}

bool Checkpointing::has_checkpoint(const std::string& given_dir) {
  const auto input_dir = folder_to_load("has_checkpoint", given_dir);
  finish();
  return result_of_one_rank<int>(context_, "has_checkpoint", creates_folders(), [&] {
           recover(input_dir);
           return readable_folder(input_dir) ? 1 : 0;
         }) == 1;
}

std::string Checkpointing::load(TrainingState& state, const std::string& given_dir, const LoadStateOptions& options) {
  check_argument(options.inside_window == "keep" || options.inside_window == "drop",
                 "load_state: inside_window: expected keep or drop, got '{}'", options.inside_window);
  const auto input_dir = folder_to_load("load_state", given_dir);
  finish();
  checkpoint::check_registered(state);
  const auto found = find_on_one_rank(input_dir, options);
  std::unique_ptr<checkpoint::StateLoad> loading;
  agree(context_, "load_state", problem_of([&] {
          const auto is_loaded = call_load_hooks(state, found.folder);
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
