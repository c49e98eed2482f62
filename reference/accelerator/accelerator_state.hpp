#pragma once

#include <memory>
#include <string>

#include "reference/accelerator/partial_state.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/data/loader.hpp"
#include "reference/state/device_mesh.hpp"

namespace accel {

/// The rank, and the options of its Accelerator, for code that has no access to the Accelerator itself.
///
///     const accel::AcceleratorState state;
///     if (state.mixed_precision() == "bf16") ...
///
/// An Accelerator is an AcceleratorState too. Copies share one state. Thread rule: the rank's thread.
/// Source: accelerate/state.py, AcceleratorState.
class AcceleratorState : public PartialState {
 public:
  /// The state of the Accelerator that this rank created last. Throws StateError if the rank has none.
  AcceleratorState();

  [[nodiscard]] DistributedType distributed_type() const;
  /// Whether ranks compute on separate GPUs, as replicas. Source: accelerate/accelerator.py, multi_device.
  [[nodiscard]] bool multi_device() const {
    return use_distributed() && distributed_type() == DistributedType::kMultiGpu;
  }
  /// Whether this rank takes part in saving models: the first of each machine, or with a parallelism_config every rank.
  /// Source: accelerate/accelerator.py, should_save_model.
  [[nodiscard]] bool should_save_model() const { return settings().parallelism_config || is_local_main_process(); }
  [[nodiscard]] const std::string& mixed_precision() const { return *settings().mixed_precision; }
  /// The implementation of float8: "AO", or "NO" if mixed_precision is another one.
  [[nodiscard]] std::string fp8_backend() const { return mixed_precision() == "fp8" ? "AO" : "NO"; }
  [[nodiscard]] bool has_master_weights() const { return settings().master_weights; }
  [[nodiscard]] bool is_fsdp2() const { return settings().fsdp_plugin && settings().fsdp_plugin->fsdp_version == 2; }
  [[nodiscard]] bool sync_gradients() const { return context_->gradient_state.sync_gradients; }
  void set_sync_gradients(bool value) { context_->gradient_state.sync_gradients = value; }
  [[nodiscard]] int gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int steps);
  [[nodiscard]] GradientState& gradient_state() const { return context_->gradient_state; }

  [[nodiscard]] const DataLoaderConfiguration& dataloader_config() const { return settings().dataloader_config; }
  [[nodiscard]] bool split_batches() const { return settings().splits(); }
  [[nodiscard]] std::optional<bool> dispatch_batches() const { return dataloader_config().dispatch_batches; }
  [[nodiscard]] bool even_batches() const { return dataloader_config().even_batches; }
  void set_even_batches(bool value) { settings().dataloader_config.even_batches = value; }
  [[nodiscard]] bool use_seedable_sampler() const { return dataloader_config().use_seedable_sampler; }
  [[nodiscard]] bool non_blocking() const { return dataloader_config().non_blocking; }
  [[nodiscard]] bool use_stateful_dataloader() const { return dataloader_config().use_stateful_dataloader; }

  /// The active plugin; nullopt without DeepSpeed.
  [[nodiscard]] const std::optional<DeepSpeedPlugin>& deepspeed_plugin() const { return settings().deepspeed_plugin; }
  [[nodiscard]] const std::optional<FullyShardedDataParallelPlugin>& fsdp_plugin() const {
    return settings().fsdp_plugin;
  }
  /// The plugin with the values of the environment and defaults; nullopt without one.
  [[nodiscard]] const std::optional<MegatronLMPlugin>& megatron_lm_plugin() const {
    return settings().megatron_lm_plugin;
  }
  /// Returns the entry of `deepspeed_plugins` with this name. Throws ArgumentError if there is none.
  [[nodiscard]] const DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  /// Selects the plugin that later `prepare` calls and optimizer steps use. Source: accelerate/state.py,
  /// select_deepspeed_plugin.
  void select_deepspeed_plugin(const std::string& name);

  /// The sizes of the mesh of ranks; nullopt: all ranks are data parallel.
  [[nodiscard]] const std::optional<ParallelismConfig>& parallelism_config() const {
    return settings().parallelism_config;
  }
  /// The process groups of the mesh. Without a parallelism_config all ranks are in "dp" and "dp_replicate".
  [[nodiscard]] const DeviceMesh& mesh() const { return shared_->mesh; }
  /// Number of ranks that read different samples, and this rank's index among them. Equal to the world size and the
  /// rank unless parallelism_config defines a mesh.
  [[nodiscard]] int data_parallel_size() const { return data_parallel().size; }
  [[nodiscard]] int data_parallel_rank() const { return data_parallel().rank; }
  /// This rank's index along an axis of the mesh; 0 along an axis of size 1. Throw StateError without a
  /// parallelism_config.
  [[nodiscard]] int data_parallel_shard_rank() const;
  [[nodiscard]] int context_parallel_rank() const;
  [[nodiscard]] int sequence_parallel_rank() const;
  [[nodiscard]] int tensor_parallel_rank() const;
  [[nodiscard]] int expert_parallel_rank() const;

 protected:
  AcceleratorState(AcceleratorOptions options, RankContext& context);

  struct Shared {
    AcceleratorOptions options = {};  // with the environment's values
    ResolvedPlugin plugin = {};
    DeviceMesh mesh = {};
    DataParallel data_parallel = {};
    bool has_model_of_plugin = false;
  };
  [[nodiscard]] Shared& shared() const { return *shared_; }
  [[nodiscard]] AcceleratorOptions& settings() const { return shared_->options; }
  [[nodiscard]] const ResolvedPlugin& plugin() const { return shared_->plugin; }
  [[nodiscard]] const DataParallel& data_parallel() const { return shared_->data_parallel; }
  /// The parallelism_config; nullopt also if all its sizes are 1, which is data parallelism over all ranks.
  [[nodiscard]] std::optional<ParallelismConfig> mesh_sizes() const;
  [[nodiscard]] std::optional<std::string> deepspeed_file() const;
  void warn_of_plugin() const;

 private:
  [[nodiscard]] int index_along(std::size_t axis, const char* name) const;

  std::shared_ptr<Shared> shared_;
};

}  // namespace accel
