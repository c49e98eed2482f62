#pragma once

#include <optional>
#include <string>

#include "reference/config/options.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed };

/// Which rank this is, how it trains, and what was prepared: what all parts of an Accelerator share.
///
/// Each part derives from it virtually, so that an Accelerator has one. Source: accelerate/state.py, AcceleratorState.
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
  [[nodiscard]] const std::string& mixed_precision() const { return mixed_precision_; }
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
  /// One of `deepspeed_plugins`. Throws ArgumentError for another name.
  [[nodiscard]] const DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  /// The plugin by which models are prepared, and steps are taken, from here on. Source: accelerate/state.py,
  /// select_deepspeed_plugin.
  void select_deepspeed_plugin(const std::string& name);
  /// Ranks that read different samples, and this rank among them; the world, unless parallelism_config makes a mesh.
  [[nodiscard]] int data_parallel_size() const { return data_parallel_.size; }
  [[nodiscard]] int data_parallel_rank() const { return data_parallel_.rank; }

 protected:
  /// For the parts: the Accelerator constructs their common base.
  AcceleratorState() = default;
  AcceleratorState(AcceleratorOptions options, RankContext& context);
  // A virtual base may be assigned once per part, so moving copies.
  AcceleratorState(const AcceleratorState&) = default;
  AcceleratorState& operator=(const AcceleratorState&) = default;
  ~AcceleratorState() = default;

  /// Makes the groups of ranks that read different samples, and the path of gradients. Collective.
  void join_data_parallel_group();
  [[nodiscard]] std::shared_ptr<GradientPath> make_gradient_path() const;
  [[nodiscard]] bool shards() const { return plugin_.sharding.has_value(); }
  [[nodiscard]] std::optional<std::string> deepspeed_file() const;
  void warn_of_ignored_deepspeed_keys() const;
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
