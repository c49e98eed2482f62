#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The plain structs that configure an Accelerator; names and defaults are Accelerate's.
/// Source: accelerate/utils/dataclasses.py.
namespace accel {

/// How loaders are sharded.
struct DataLoaderConfiguration {
  bool split_batches = false;  ///< cut one batch over the ranks; batch_size must be a multiple of their number
  std::optional<bool> dispatch_batches;  ///< rank 0 reads for all; default: for iterable datasets, if device_placement is on
  bool even_batches = true;  ///< wrap around to the first samples, so that every rank has the same number of batches
  bool use_seedable_sampler = false;  ///< the order is a function of (data_seed, epoch) alone
  std::optional<std::int64_t> data_seed;  ///< default: the seed of the rank's default generator at prepare
  bool non_blocking = false;
  bool use_stateful_dataloader = false;  ///< accepted; every loader has state_dict and load_state_dict here
  /// "elastic": the steps of an epoch do not depend on the number of ranks. batch_size is that of all ranks together, the
  /// order is a function of (data_seed, epoch) alone, and the last step is filled up for one rank too.
  std::string order = "accelerate";

  [[nodiscard]] bool is_elastic() const { return order == "elastic"; }
  [[nodiscard]] bool splits() const { return split_batches || is_elastic(); }
  [[nodiscard]] bool seeds_order() const { return use_seedable_sampler || is_elastic(); }
};

/// A mesh of ranks, the last dimension fastest: dp_replicate, dp_shard, cp, sp, tp. The product is the number of ranks.
/// Ranks that differ only in tp, cp or sp share one batch: loaders give it to all of them.
struct ParallelismConfig {
  int dp_replicate_size = 1, dp_shard_size = 1, cp_size = 1, sp_size = 1, tp_size = 1;
  [[nodiscard]] int data_parallel_size() const { return dp_replicate_size * dp_shard_size; }
  [[nodiscard]] int non_data_parallel_size() const { return cp_size * sp_size * tp_size; }
};

/// What is wrong with it whatever is loaded; nothing, if it can be.
std::vector<std::string> problems_of(const DataLoaderConfiguration& config);

struct GradientAccumulationPlugin {
  std::optional<int> num_steps;
  bool adjust_scheduler = true;
  bool sync_with_dataloader = true;  ///< the last batch of a loader always synchronises and steps
  bool sync_each_batch = false;      ///< communicate on every batch; when the optimizer steps does not change
};

struct DistributedDataParallelKwargs {
  bool broadcast_buffers = true;
  std::optional<int> bucket_cap_mb;  ///< MiB of a gradient bucket; default 25, with a first bucket of 1
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
};

/// Arguments of the Accelerator's constructor.
struct AcceleratorOptions {
  std::optional<std::string> mixed_precision;  ///< "no" or "bf16"; default: ACCELERATE_MIXED_PRECISION, else "no"
  int gradient_accumulation_steps = 1;         ///< ACCELERATE_GRADIENT_ACCUMULATION_STEPS beats it, as in Accelerate
  bool device_placement = true;
  std::optional<bool> split_batches;  ///< honoured here; Accelerate ignores it
  DataLoaderConfiguration dataloader_config = {};
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin;
  std::optional<ParallelismConfig> parallelism_config;  ///< default: every rank reads its own batch
  std::vector<std::string> rng_types = {"generator"};
  bool step_scheduler_with_optimizer = true;
  DistributedDataParallelKwargs ddp_kwargs = {};

  [[nodiscard]] bool splits() const { return split_batches.value_or(dataloader_config.split_batches) || dataloader_config.is_elastic(); }
};

}  // namespace accel
