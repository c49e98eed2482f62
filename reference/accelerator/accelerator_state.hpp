#pragma once

#include <optional>
#include <string>

#include "reference/config/options.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed };

/// The state shared by all parts of an Accelerator: the rank, the training options, and the prepared objects.
///
/// Each part inherits it virtually, so an Accelerator has exactly one. Source: accelerate/state.py, AcceleratorState.
class AcceleratorState {
 public:
  [[nodiscard]] c10::Device device() const { return context_->device; }
  [[nodiscard]] DistributedType distributed_type() const;
  [[nodiscard]] int num_processes() const { return context_->world_size; }
  [[nodiscard]] int process_index() const { return context_->rank; }
  [[nodiscard]] int local_process_index() const { return context_->local_rank; }
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  [[nodiscard]] bool is_last_process() const { return process_index() == num_processes() - 1; }
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  /// Whether ranks compute on GPUs of their own, as replicas. Source: accelerate/accelerator.py, multi_device.
  [[nodiscard]] bool multi_device() const {
    return use_distributed() && distributed_type() == DistributedType::kMultiGpu;
  }
  /// Whether this rank takes part in saving models: the first of each machine, or with a parallelism_config every rank.
  /// Source: accelerate/accelerator.py, should_save_model.
  [[nodiscard]] bool should_save_model() const { return options_.parallelism_config || is_local_main_process(); }
  [[nodiscard]] const std::string& mixed_precision() const { return mixed_precision_; }
  /// The implementation of float8: "AO", or "NO" if mixed_precision is another one.
  [[nodiscard]] std::string fp8_backend() const { return mixed_precision_ == "fp8" ? "AO" : "NO"; }
  [[nodiscard]] bool has_master_weights() const { return options_.master_weights; }
  [[nodiscard]] bool sync_gradients() const { return context_->gradient_state.sync_gradients; }
  void set_sync_gradients(bool value) { context_->gradient_state.sync_gradients = value; }
  [[nodiscard]] int gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int steps);
  [[nodiscard]] GradientState& gradient_state() const { return context_->gradient_state; }
  [[nodiscard]] RankContext& context() const { return *context_; }
  [[nodiscard]] const DataLoaderConfiguration& dataloader_config() const { return options_.dataloader_config; }
  [[nodiscard]] bool split_batches() const { return options_.splits(); }
  [[nodiscard]] bool even_batches() const { return options_.dataloader_config.even_batches; }
  void set_even_batches(bool value) { options_.dataloader_config.even_batches = value; }
  /// Returns the entry of `deepspeed_plugins` with this name. Throws ArgumentError if there is none.
  [[nodiscard]] const DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  /// Selects the plugin that later `prepare` calls and optimizer steps use. Source: accelerate/state.py,
  /// select_deepspeed_plugin.
  void select_deepspeed_plugin(const std::string& name);
  /// Number of ranks that read different samples, and this rank's index among them. Equal to the world size and the
  /// rank unless parallelism_config defines a mesh.
  [[nodiscard]] int data_parallel_size() const { return data_parallel_.size; }
  [[nodiscard]] int data_parallel_rank() const { return data_parallel_.rank; }

 protected:
  /// Used by the parts only: Accelerator itself constructs the shared virtual base.
  AcceleratorState() = default;
  AcceleratorState(AcceleratorOptions options, RankContext& context);
  // The implicit assignment of an Accelerator may assign the virtual base once per part. A second move would read
  // moved-from members, so this class declares only copies, and moving an Accelerator copies its state.
  AcceleratorState(const AcceleratorState&) = default;
  AcceleratorState& operator=(const AcceleratorState&) = default;
  ~AcceleratorState() = default;

  /// Creates the data-parallel process groups and the gradient pipeline. Collective.
  void join_data_parallel_group();
  [[nodiscard]] std::shared_ptr<GradientPipeline> make_gradient_pipeline() const;
  [[nodiscard]] bool shards() const { return plugin_.sharding.has_value(); }
  [[nodiscard]] std::optional<std::string> deepspeed_file() const;
  void warn_of_plugin() const;
  [[nodiscard]] std::optional<Autocast::Options> autocast_options(const AutocastKwargs& kwargs) const;

  AcceleratorOptions options_;
  RankContext* context_ = nullptr;
  std::string mixed_precision_;
  ResolvedPlugin plugin_;
  bool has_model_of_plugin_ = false;
  DataParallel data_parallel_;
  TrainingState training_;
};

}  // namespace accel
