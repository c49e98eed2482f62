#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {

class LockFile;

struct SaveStateOptions {
  bool safe_serialization = true;  ///< weights as safetensors, else as torch.save writes them
  /// Writes files in the background; the call only takes the time to copy the state. The checkpoint gets its final name
  /// in the next `save_state`, `load_state`, `finish_saving` or `end_training`, or when the rank's program returns.
  bool async = false;
};

struct LoadStateOptions {
  /// What happens to a checkpoint of another number of ranks that was saved inside an accumulation window, where every
  /// rank has its own gradients. "keep": CheckpointError. "drop": they are dropped, and the loop over the loader that
  /// was being read repeats the window's micro-batches. Random streams and buffers such as running averages continue
  /// from where they were saved. The same number of ranks always continues inside the window.
  std::string inside_window = "keep";
  /// Loads a checkpoint of accel whose manifest is missing, with a warning: its files cannot be verified. Else
  /// CheckpointError. Folders that Python wrote have no manifest and are always loaded.
  bool allow_missing_manifest = false;
};

struct SaveModelOptions {
  std::string max_shard_size = "10GB";  ///< maximum size of a file: a number and KB, MB, GB or TB
  bool safe_serialization = true;       ///< safetensors, else files of torch.save
};

/// Saves and loads the checkpoint folders of one Accelerator. It coordinates the ranks so that a folder with its final
/// name is complete, and every rank sees the same outcome.
///
/// Thread rule: the rank's thread. All but `save_object` are collective.
class Checkpointing {
 public:
  /// Called before files are written. It may change or clear `weights`, which has one entry per model. Files that it
  /// creates in `folder` become part of the checkpoint.
  using SaveHook = std::function<void(const std::vector<std::shared_ptr<torch::nn::Module>>& models,
                                      checkpoint::Weights& weights, const std::string& folder)>;
  /// Called before a folder is loaded. Models that it removes from `models` are not loaded.
  using LoadHook =
      std::function<void(std::vector<std::shared_ptr<torch::nn::Module>>& models, const std::string& folder)>;

  Checkpointing(RankContext& context, ProjectConfiguration config) : context_(context), config_(std::move(config)) {}
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  /// Saves a checkpoint and returns its folder. Throws CheckpointError on every rank if any rank could not write, if
  /// another process saves there (checkpoint_folder.hpp, lock_of), or if the checkpoint of this number already exists
  /// under automatic naming; an existing checkpoint is then unchanged. Throws ArgumentError if there is no folder.
  std::string save(TrainingState& state, const std::string& output_dir, SaveStateOptions options);
  /// Loads a checkpoint and returns its folder. Throws CheckpointError on every rank if any rank could not load;
  /// nothing is changed then. Throws ArgumentError for unknown options.
  std::string load(TrainingState& state, const std::string& input_dir, const LoadStateOptions& options = {});
  /// Whether `load` would find a checkpoint, which it may refuse. Throws ArgumentError if there is no folder.
  [[nodiscard]] bool has_checkpoint(const std::string& input_dir);
  /// Saves only a model's weights. Leaves out tensors on the meta device, with a warning. Throws CheckpointError on
  /// every rank if they could not be written.
  void save_model(const NamedTensors& weights, const std::string& save_directory,
                  const SaveModelOptions& options) const;
  /// Writes an object on the rank that creates folders; others do nothing. Not collective.
  void save_object(const Value& object, const std::string& file) const;
  void save_object(const NamedTensors& tensors, const std::string& file, bool safe_serialization) const;
  /// Waits for asynchronous saves of this rank, and gives their folders the final names.
  void finish();

  [[nodiscard]] std::int64_t iteration() const { return config_.iteration; }
  void set_iteration(std::int64_t iteration) { config_.iteration = iteration; }
  [[nodiscard]] const ProjectConfiguration& config() const { return config_; }

  std::list<SaveHook> save_hooks;
  std::list<LoadHook> load_hooks;

 private:
  /// A folder to load.
  struct Found {
    std::string folder = {};
    int saved_ranks = 0;    // 0: unknown
    std::int64_t next = 0;  // number of the next checkpoint under automatic naming
  };

  // Whether this rank creates and publishes folders: rank 0, or one rank per machine with save_on_each_node.
  [[nodiscard]] bool creates_folders() const;
  [[nodiscard]] std::string checkpoints_folder() const { return config_.project_dir + "/checkpoints"; }
  [[nodiscard]] std::string folder_to_save(const std::string& output_dir) const;
  [[nodiscard]] std::string folder_to_load(const std::string& function, const std::string& input_dir) const;
  [[nodiscard]] std::optional<std::string> readable_folder(const std::string& input_dir) const;
  void recover(const std::string& input_dir) const;
  [[nodiscard]] Found find(const std::string& input_dir, const LoadStateOptions& options) const;
  [[nodiscard]] Found find_on_one_rank(const std::string& input_dir, const LoadStateOptions& options) const;
  [[nodiscard]] std::vector<bool> call_load_hooks(const TrainingState& state, const std::string& folder) const;
  void lock(const std::string& folder);
  std::string begin(const std::string& folder);

  RankContext& context_;
  ProjectConfiguration config_;
  /// Of the folders saved last, the newest first.
  std::deque<std::pair<std::string, std::shared_ptr<const LockFile>>> locks_;
};

}  // namespace accel
