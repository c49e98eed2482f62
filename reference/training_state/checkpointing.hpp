#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {

struct SaveStateOptions {
  bool safe_serialization = true;  ///< weights as safetensors, else as torch.save writes them
  /// Files are written while training goes on: the call takes what it takes to copy. The checkpoint has its name after
  /// the next `save_state`, `load_state`, `finish_saving` or `end_training`.
  bool async = false;
};

struct SaveModelOptions {
  std::string max_shard_size = "10GB";  ///< of a file: a number and KB, MB, GB or TB
  bool safe_serialization = true;       ///< safetensors, else files of torch.save
};

/// Checkpoint folders of one Accelerator: who writes what when, so that a folder with its name is whole, and every rank
/// sees the same outcome.
///
/// Thread rule: the rank's thread. Every method is collective, but for hooks and numbers.
class Checkpointing {
 public:
  /// Before files are written: `weights` are the models', in their order, and may be emptied or changed; files in
  /// `folder` become part of the checkpoint.
  using SaveHook = std::function<void(const std::vector<std::shared_ptr<torch::nn::Module>>& models,
                                      checkpoint::Weights& weights, const std::string& folder)>;
  /// Before a folder is loaded: models that are taken out of `models` are not loaded.
  using LoadHook =
      std::function<void(std::vector<std::shared_ptr<torch::nn::Module>>& models, const std::string& folder)>;

  Checkpointing(RankContext& context, ProjectConfiguration config);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  /// Returns the folder. Throws CheckpointError on every rank if any rank could not write, or if there is such a
  /// checkpoint under automatic naming, with what was there before untouched; ArgumentError if no folder is named.
  std::string save(TrainingState& state, const std::string& output_dir, SaveStateOptions options);
  /// Returns the folder. Throws CheckpointError on every rank if any rank could not load, with everything as it was
  /// before.
  std::string load(TrainingState& state, const std::string& input_dir);
  /// A model's weights alone, for programs that read weights. Throws CheckpointError on every rank if they could not be
  /// written.
  void save_model(const NamedTensors& weights, const std::string& save_directory,
                  const SaveModelOptions& options) const;
  /// Waits for what is written behind the program's back.
  void finish();

  [[nodiscard]] std::int64_t iteration() const { return config_.iteration; }
  void set_iteration(std::int64_t iteration) { config_.iteration = iteration; }
  [[nodiscard]] const ProjectConfiguration& config() const { return config_; }

  std::list<SaveHook> save_hooks;
  std::list<LoadHook> load_hooks;

 private:
  struct Pending;
  /// The folder to load.
  struct Found {
    std::string folder = {};
    int saved_ranks = 0;    // 0: unknown
    std::int64_t next = 0;  // number of the next checkpoint
  };

  // One process, or one of each machine.
  [[nodiscard]] bool begins_folders() const;
  [[nodiscard]] std::string checkpoints_folder() const { return config_.project_dir + "/checkpoints"; }
  [[nodiscard]] std::string folder_to_save(const std::string& output_dir) const;
  [[nodiscard]] std::string newest_folder() const;
  [[nodiscard]] Found find(const std::string& input_dir) const;
  [[nodiscard]] Found find_together(const std::string& input_dir) const;
  [[nodiscard]] std::vector<bool> call_load_hooks(const TrainingState& state, const std::string& folder) const;
  std::string begin(const std::string& folder) const;
  /// Every rank's problem: throws the same on all, if there is one.
  void agree(const std::string& what, const std::string& problem) const;
  void conclude(Pending& pending);

  RankContext& context_;
  ProjectConfiguration config_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace accel
