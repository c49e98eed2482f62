#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "reference/config/plugins/data_loader_configuration.hpp"
#include "reference/config/plugins/float8.hpp"
#include "reference/config/plugins/megatron_lm_plugin.hpp"
#include "reference/config/plugins/mesh_options.hpp"
#include "reference/config/plugins/profile_kwargs.hpp"
#include "reference/config/plugins/sharding.hpp"

/// Structs that configure an Accelerator, with Accelerate's names and defaults.
/// Source: accelerate/utils/dataclasses.py.
namespace accel {

class GeneralTracker;
/// The name of a built-in tracker (reference/tracking/built_in_trackers.hpp), "all", or a user-defined tracker.
using LogWith = std::variant<std::string, std::shared_ptr<GeneralTracker>>;

/// Folders for the files of a program.
struct ProjectConfiguration {
  std::string project_dir = {};  ///< with automatic naming, checkpoints are in project_dir/checkpoints
  std::string logging_dir = {};  ///< folder of trackers; default: project_dir
  bool automatic_checkpoint_naming = false;
  /// With automatic naming, the number of checkpoints to keep; those with the highest numbers are kept.
  std::optional<int> total_limit = {};
  std::int64_t iteration = 0;      ///< with automatic naming, the number of the next checkpoint
  bool save_on_each_node = false;  ///< write rank 0's files on each machine, for machines without a shared file system
};
std::vector<std::string> problems_of(const ProjectConfiguration& config);

/// Returns the problems of the options that do not depend on the dataset; empty if they are valid.
std::vector<std::string> problems_of(const DataLoaderConfiguration& config);

struct GradientAccumulationPlugin {
  std::optional<int> num_steps = {};
  /// Increments the step count of a schedule, but not its learning rate, for micro-batches that do not step the
  /// optimizer; a schedule with total_steps then ends earlier.
  /// Accelerate's default is true, but Accelerate never reads the field, so its effective value is false.
  bool adjust_scheduler = false;
  bool sync_with_dataloader = true;  ///< the last batch of a loader always synchronizes and steps
  bool sync_each_batch = false;      ///< communicate in every backward pass; does not change when the optimizer steps
};

/// Options of PowerSGD, which approximates gradients by low-rank matrices. Source: PowerSGDState in torch's
/// powerSGD_hook.py, with its defaults.
struct PowerSGDOptions {
  int matrix_approximation_rank = 1;
  int start_powerSGD_iter = 1000;        ///< first compressed step; at least 2 with error feedback or warm start
  double min_compression_rate = 2;       ///< tensors with a smaller compression rate are sent uncompressed
  bool use_error_feedback = true;        ///< adds the approximation error to the gradients of the next step
  bool warm_start = true;                ///< starts from the matrices of the previous step
  double orthogonalization_epsilon = 0;  ///< added to norms, for columns of zeros
  std::int64_t random_seed = 0;          ///< seed of numpy.random.RandomState: 0 to 2^32 - 1
  int compression_stats_logging_frequency = 10'000;  ///< without effect; `sim-run` and its reports count sent bytes
  bool batch_tensors_with_same_shape = false;

  friend bool operator==(const PowerSGDOptions&, const PowerSGDOptions&) = default;
};

struct DistributedDataParallelKwargs {
  int dim = 0;  ///< without effect, as in torch
  bool broadcast_buffers = true;
  std::optional<int> bucket_cap_mb = {};  ///< size of a gradient bucket in MiB; default: 25, and 1 for the first bucket
  bool find_unused_parameters = false;
  bool check_reduction = false;  ///< without effect, as in torch
  /// Gradients are views of the buckets that are reduced, which saves a copy in each direction. Default: true
  /// on GPUs, false on CPUs.
  std::optional<bool> gradient_as_bucket_view = {};
  /// Requires that every backward pass synchronizes: excludes no_sync(), and accumulation without sync_each_batch.
  bool static_graph = false;
  /// Compression of gradients: "no", "fp16", "bf16", "power_sgd" or "batched_power_sgd".
  std::string comm_hook = "no";
  std::string comm_wrapper = "no";         ///< dtype to which the hook's data are cast: "no", "fp16" or "bf16"
  PowerSGDOptions comm_state_option = {};  ///< for "power_sgd" and "batched_power_sgd"

  friend bool operator==(const DistributedDataParallelKwargs&, const DistributedDataParallelKwargs&) = default;
};

/// Returns the problems of the options that do not depend on the model; empty if they are valid.
std::vector<std::string> problems_of(const DistributedDataParallelKwargs& kwargs);

/// Options of the autocast context around a model's forward pass.
struct AutocastKwargs {
  bool enabled = true;
  std::optional<bool> cache_enabled = {};  ///< cache cast weights; default: the setting of the thread, which is on

  friend bool operator==(const AutocastKwargs&, const AutocastKwargs&) = default;
};

/// Options of the loss scale with fp16.
struct GradScalerKwargs {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   ///< above 1
  double backoff_factor = 0.5;  ///< in (0, 1)
  int growth_interval = 2000;   ///< number of steps without infinities until the scale grows
  bool enabled = true;

  friend bool operator==(const GradScalerKwargs&, const GradScalerKwargs&) = default;
};
std::vector<std::string> problems_of(const GradScalerKwargs& kwargs);

/// Options of the process group, which exists before the Accelerator is created.
struct InitProcessGroupKwargs {
  /// "gloo" or "nccl"; an error if the ranks use another backend. The simulator accepts both.
  std::optional<std::string> backend = {};
  /// "env://" or unset: launchers pass the rank in environment variables.
  std::optional<std::string> init_method = {};
  std::optional<std::chrono::milliseconds> timeout = {};  ///< of a collective; the simulator detects a hang at once

  friend bool operator==(const InitProcessGroupKwargs&, const InitProcessGroupKwargs&) = default;
};

/// Skips optimizer steps with bad gradients on all ranks: parameters are unchanged, and `step_was_skipped` is true. Off
/// by default, as in Accelerate, where one non-finite gradient turns all parameters into NaN.
struct GradientGuard {
  bool skip_non_finite = false;  ///< skip if a gradient contains an infinity or NaN
  std::optional<double> skip_norm_above =
      {};  ///< limit of the total 2-norm of an optimizer's gradients, before clipping

  [[nodiscard]] bool is_on() const { return skip_non_finite || skip_norm_above.has_value(); }
};

/// Switches of LibTorch's CUDA libraries. Unset: unchanged. They hold for the process, as torch.backends does, and have
/// no effect on ranks on CPUs.
struct BackendsKwargs {
  /// Multiplies and convolves float32 tensors in TensorFloat32: faster, with a mantissa of 10 bits instead of 23.
  std::optional<bool> allow_tf32 = {};
  std::optional<bool> cudnn_benchmark = {};  ///< time cuDNN's algorithms for each new input shape, and use the fastest
  std::optional<bool> cudnn_deterministic = {};  ///< only deterministic algorithms of cuDNN

  friend bool operator==(const BackendsKwargs&, const BackendsKwargs&) = default;
};

/// An entry of `kwargs_handlers`.
using KwargsHandler = std::variant<DistributedDataParallelKwargs, AutocastKwargs, AORecipeKwargs, GradScalerKwargs,
                                   BackendsKwargs, InitProcessGroupKwargs, ProfileKwargs>;

/// Options of the Accelerator's constructor.
struct AcceleratorOptions {
  /// "no", "fp16", "bf16" or "fp8". Default: ACCELERATE_MIXED_PRECISION or "no".
  std::optional<std::string> mixed_precision = {};
  /// For mixed_precision "bf16": weights, their gradients and the communication are bfloat16, and optimizers step
  /// float32 copies of the weights. Avoids the casts of autocast, under which the model still computes. Vectors, such
  /// as biases, are float32. Checkpoints contain the float32 copies. Excludes plugins, which shard such copies, and
  /// LocalSGD.
  bool master_weights = false;
  /// Stores 4-d weights, and converts 4-d inputs of models, in the memory format torch::MemoryFormat::ChannelsLast,
  /// which convolutions in low precision prefer. Excludes plugins.
  bool channels_last = false;
  int gradient_accumulation_steps = 1;  ///< overridden by ACCELERATE_GRADIENT_ACCUMULATION_STEPS, as in Accelerate
  /// Moves models, optimizers' state and batches to the rank's device. `prepare` accepts another value per object.
  bool device_placement = true;
  /// Computes on the CPU although the rank found a GPU. Ranks over NCCL are started with --cpu instead.
  bool cpu = false;
  std::optional<bool> split_batches = {};  ///< effective here, while Accelerate ignores it
  DataLoaderConfiguration dataloader_config = {};
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = {};
  std::optional<ParallelismConfig> parallelism_config = {};  ///< default: every rank reads its own batch
  /// Default: configured by the environment if ACCELERATE_USE_DEEPSPEED is set.
  std::optional<DeepSpeedPlugin> deepspeed_plugin = {};
  /// Several plugins by name; excludes deepspeed_plugin. The first one by name is active initially, while Accelerate
  /// activates the first one that was passed.
  std::map<std::string, DeepSpeedPlugin> deepspeed_plugins = {};
  /// Excludes DeepSpeed plugins. Default: configured by the environment if ACCELERATE_USE_FSDP is set.
  std::optional<FullyShardedDataParallelPlugin> fsdp_plugin = {};
  /// Sets the mesh, and excludes parallelism_config and other plugins. Default: configured by the environment if
  /// ACCELERATE_USE_MEGATRON_LM is set.
  std::optional<MegatronLMPlugin> megatron_lm_plugin = {};
  std::optional<std::string> project_dir = {};  ///< overrides that of project_config
  ProjectConfiguration project_config = {};
  std::vector<LogWith> log_with = {};
  ProfileKwargs profile_kwargs = {};
  std::vector<std::string> rng_types = {"generator"};
  bool step_scheduler_with_optimizer = true;
  DistributedDataParallelKwargs ddp_kwargs = {};
  AutocastKwargs autocast_kwargs = {};
  std::optional<AORecipeKwargs> ao_recipe_kwargs = {};  ///< only for mixed_precision "fp8"
  GradScalerKwargs grad_scaler_kwargs = {};
  BackendsKwargs backends_kwargs = {};
  InitProcessGroupKwargs init_process_group_kwargs = {};
  /// Sets the fields above by their types, as in Accelerate: at most one of each type, whose field is not set too.
  std::vector<KwargsHandler> kwargs_handlers = {};
  GradientGuard gradient_guard = {};
  /// "accelerate": all micro-batches of all ranks have equal weights, and a short window counts like a complete one.
  /// "exact": all items have equal weights, so that any division into micro-batches and ranks gives the gradient of one
  /// large batch. See backward.
  std::string loss_weighting = "accelerate";
  /// Compares devices and shapes between ranks before each collective on trees. Default: ACCELERATE_DEBUG_MODE or off.
  std::optional<bool> debug = {};

  [[nodiscard]] bool splits() const {
    return split_batches.value_or(dataloader_config.split_batches) || dataloader_config.is_elastic();
  }
};

/// Reports plugins that exclude each other. `resolve` reports the problems of a single plugin.
std::vector<std::string> problems_of_plugins(const AcceleratorOptions& options);

/// Of Accelerator::elastic.
struct ElasticOptions {
  /// Set: the training continues without ranks that it loses, while so many are left. Unset: a lost rank ends the job.
  std::optional<int> min_ranks = {};
  int logical_ranks = 0;  ///< required; at least one for each rank
};

}  // namespace accel
