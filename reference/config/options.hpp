#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "reference/config/data_loader_configuration.hpp"
#include "reference/config/float8.hpp"
#include "reference/config/profile_kwargs.hpp"
#include "reference/config/sharding.hpp"

/// The plain structs that configure an Accelerator; names and defaults are Accelerate's.
/// Source: accelerate/utils/dataclasses.py.
namespace accel {

class GeneralTracker;
/// "tensorboard", "jsonl", "csv", "all", or a tracker of the caller's own.
using LogWith = std::variant<std::string, std::shared_ptr<GeneralTracker>>;

/// Where a program's files go.
struct ProjectConfiguration {
  std::string project_dir = {};  ///< checkpoints under automatic naming are in project_dir/checkpoints
  std::string logging_dir = {};  ///< of trackers; default: project_dir
  bool automatic_checkpoint_naming = false;
  std::optional<int> total_limit =
      {};                      ///< so many checkpoints are kept under automatic naming: those of the highest numbers
  std::int64_t iteration = 0;  ///< the number of the next checkpoint under automatic naming
  bool save_on_each_node = false;  ///< machines share no file system: each has what rank 0 writes
};
std::vector<std::string> problems_of(const ProjectConfiguration& config);

/// A mesh of ranks, the last dimension fastest: dp_replicate, dp_shard, cp, sp, tp. The product is the number of ranks.
/// Ranks that differ only in tp, cp or sp share one batch: loaders give it to all of them.
struct ParallelismConfig {
  int dp_replicate_size = 1, dp_shard_size = 1, cp_size = 1, sp_size = 1, tp_size = 1;
};

/// What is wrong with it whatever is loaded; nothing, if it can be.
std::vector<std::string> problems_of(const DataLoaderConfiguration& config);

struct GradientAccumulationPlugin {
  std::optional<int> num_steps = {};
  /// Counts micro-batches that do not step in a schedule's own count, which ends one with total_steps earlier.
  /// Accelerate's default is true, and it is never read there: its effect is false.
  bool adjust_scheduler = false;
  bool sync_with_dataloader = true;  ///< the last batch of a loader always synchronises and steps
  bool sync_each_batch = false;      ///< communicate on every batch; when the optimizer steps does not change
};

/// What PowerSGD approximates gradients by: low-rank matrices. Source: PowerSGDState of torch's powerSGD_hook.py, with
/// its defaults.
struct PowerSGDOptions {
  int matrix_approximation_rank = 1;
  int start_powerSGD_iter = 1000;        ///< plain all-reduces until then; at least 2 with error feedback or warm start
  double min_compression_rate = 2;       ///< tensors that would shrink less are sent as they are
  bool use_error_feedback = true;        ///< what was lost is added to the next step's gradients
  bool warm_start = true;                ///< the last step's matrices are this step's first guess
  double orthogonalization_epsilon = 0;  ///< added to norms, for columns of zeros
  std::int64_t random_seed = 0;          ///< of numpy.random.RandomState: 0 to 2^32 - 1
  int compression_stats_logging_frequency = 10'000;  ///< accepted; `sim-run` and its reports count what is sent
  bool batch_tensors_with_same_shape = false;
};

struct DistributedDataParallelKwargs {
  int dim = 0;  ///< accepted; without effect in torch, too
  bool broadcast_buffers = true;
  std::optional<int> bucket_cap_mb = {};  ///< MiB of a gradient bucket; default 25, with a first bucket of 1
  bool find_unused_parameters = false;
  bool check_reduction = false;  ///< accepted; without effect in torch, too
  bool gradient_as_bucket_view = false;
  bool static_graph =
      false;  ///< every backward pass must synchronise: not with no_sync() or accumulation, but for sync_each_batch
  std::string comm_hook =
      "no";  ///< "no", "fp16", "bf16", "power_sgd" or "batched_power_sgd": what is sent of gradients
  std::string comm_wrapper = "no";         ///< "no", "fp16" or "bf16": what the hook's numbers are cast to
  PowerSGDOptions comm_state_option = {};  ///< of "power_sgd" and "batched_power_sgd"
};

/// What is wrong with it whatever the model; nothing, if it can be.
std::vector<std::string> problems_of(const DistributedDataParallelKwargs& kwargs);

/// Of the autocast that surrounds a model's forward.
struct AutocastKwargs {
  bool enabled = true;
  std::optional<bool> cache_enabled = {};  ///< of cast weights; default: as the thread has it, which is on

  friend bool operator==(const AutocastKwargs&, const AutocastKwargs&) = default;
};

/// Of the loss scale under fp16.
struct GradScalerKwargs {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   ///< above 1
  double backoff_factor = 0.5;  ///< in (0, 1)
  int growth_interval = 2000;   ///< steps without infinities until the scale grows
  bool enabled = true;
};
std::vector<std::string> problems_of(const GradScalerKwargs& kwargs);

/// Of the ranks' group, which is there before the Accelerator is.
struct InitProcessGroupKwargs {
  std::optional<std::string> backend =
      {};  ///< "gloo" or "nccl": an error if the ranks have another; a rehearsal stands for both
  std::optional<std::string> init_method =
      {};  ///< "env://" or none: launchers tell ranks their place by the environment
  std::optional<std::chrono::milliseconds> timeout = {};  ///< of a collective; in a rehearsal a hang ends at once
};

/// Steps that are not taken, on every rank alike: parameters stay as they are, `step_was_skipped` is true. Off by
/// default, as in Accelerate, where one such gradient makes all parameters NaN.
struct GradientGuard {
  bool skip_non_finite = false;                ///< gradients with an infinity or NaN
  std::optional<double> skip_norm_above = {};  ///< the total norm (2) of an optimizer's gradients, before clipping

  [[nodiscard]] bool is_on() const { return skip_non_finite || skip_norm_above.has_value(); }
};

/// Arguments of the Accelerator's constructor.
struct AcceleratorOptions {
  std::optional<std::string> mixed_precision =
      {};  ///< "no", "fp16", "bf16" or "fp8"; default: ACCELERATE_MIXED_PRECISION, else "no"
  int gradient_accumulation_steps = 1;  ///< ACCELERATE_GRADIENT_ACCUMULATION_STEPS beats it, as in Accelerate
  bool device_placement = true;
  std::optional<bool> split_batches = {};  ///< honoured here; Accelerate ignores it
  DataLoaderConfiguration dataloader_config = {};
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = {};
  std::optional<ParallelismConfig> parallelism_config = {};  ///< default: every rank reads its own batch
  std::optional<DeepSpeedPlugin> deepspeed_plugin =
      {};  ///< default: one of the environment's, with ACCELERATE_USE_DEEPSPEED
  /// More than one, by names of the caller's; excludes deepspeed_plugin. The first by name is the active one at first:
  /// Accelerate takes the first that was passed.
  std::map<std::string, DeepSpeedPlugin> deepspeed_plugins = {};
  std::optional<FullyShardedDataParallelPlugin> fsdp_plugin =
      {};  ///< excludes DeepSpeed's; default: the environment's, with ACCELERATE_USE_FSDP
  std::optional<std::string> project_dir = {};  ///< in place of project_config's
  ProjectConfiguration project_config = {};
  std::vector<LogWith> log_with = {};
  ProfileKwargs profile_kwargs = {};
  std::vector<std::string> rng_types = {"generator"};
  bool step_scheduler_with_optimizer = true;
  DistributedDataParallelKwargs ddp_kwargs = {};
  AutocastKwargs autocast_kwargs = {};
  std::optional<AORecipeKwargs> ao_recipe_kwargs = {};  ///< of "fp8", and of nothing else
  GradScalerKwargs grad_scaler_kwargs = {};
  InitProcessGroupKwargs init_process_group_kwargs = {};
  GradientGuard gradient_guard = {};
  /// "accelerate": every micro-batch of every rank counts alike, and a short window as if it were whole. "exact": every
  /// item counts alike, so that any number of micro-batches and ranks gives the gradient of one batch of all. See
  /// backward.
  std::string loss_weighting = "accelerate";
  /// Compares devices and shapes over the ranks before each collective on trees; default: ACCELERATE_DEBUG_MODE, else
  /// off.
  std::optional<bool> debug = {};

  [[nodiscard]] bool splits() const {
    return split_batches.value_or(dataloader_config.split_batches) || dataloader_config.is_elastic();
  }
};

/// Plugins that exclude each other; what is wrong with one by itself is told by `resolve`.
std::vector<std::string> problems_of_plugins(const AcceleratorOptions& options);

/// The mesh that a launcher tells by ACCELERATE_USE_PARALLELISM_CONFIG and PARALLELISM_CONFIG_DP_SHARD_SIZE and the
/// others; nothing if it tells of none. What is wrong is added to `problems`. Source: accelerate/parallelism_config.py,
/// __post_init__.
std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems);

}  // namespace accel
