#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/config/sharding.hpp"
#include "reference/sharded/flat_parameter.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/parameter_shards.hpp"
#include "reference/sharded/unit_plan.hpp"
#include "reference/state/step_listener.hpp"

namespace torch::nn {
class Module;
}

namespace accel::sharded {

/// A model whose parameters, gradients and optimizer state are divided over ranks: ZeRO, as PyTorch's FSDP does it.
///
/// Units (see plan_units) are gathered before they compute and freed behind it; their gradients are summed to shards
/// while backward goes on. Between steps the module's parameters show this rank's parts, which optimizers step. Every
/// rank runs the same units in the same order. An exception on the way leaves parameters as the last step made them.
///
/// Construction is collective: shapes are compared, and rank 0's values sent if the options ask for it. Throws
/// ArgumentError on every rank if models differ, ConfigError for a policy that fits no module. Thread rule: the rank's
/// thread. Source: torch/distributed/fsdp/_runtime_utils.py.
class ShardedModel final : public ParameterShards {
 public:
  /// `device`: where units compute.
  ShardedModel(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options,
               c10::Device device = c10::kCPU);
  ~ShardedModel() override;
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  [[nodiscard]] const ModelPlan& plan() const;
  [[nodiscard]] const ShardGroups& groups() const;
  [[nodiscard]] const ShardingOptions& options() const;
  [[nodiscard]] const MemoryAccount& memory() const;
  [[nodiscard]] MemoryAccount& memory();

  /// --- the model's own call ---
  void before_forward();
  /// May put others of equal values in the place of `outputs`.
  void after_forward(std::vector<at::Tensor>& outputs);
  /// Behind an error in the forward: throws StateError, if a unit was perhaps called without accel::call.
  void explain(const std::exception& error) const;
  /// Whether floating inputs of the model are cast to its units' dtype.
  [[nodiscard]] bool casts_inputs() const { return options().param_dtype.has_value(); }
  [[nodiscard]] at::Tensor cast_input(const at::Tensor& tensor) const;

  bool sync_gradients = true;  ///< while false, backward keeps whole gradients on this rank and reduces nothing
  /// Parameters show this rank's parts, whatever went before: to be called before an optimizer steps.
  void show_shards();
  /// The optimizer has stepped.
  void mark_stepped();

  /// Gradients of `parameters` as FSDP1 takes norms of them, in the order of units: a tensor for each parameter where
  /// they are aligned, else for each flat buffer whose parameters are all there.
  [[nodiscard]] std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) const;

  /// Inside an accumulation window: whether gradients are of parts, or whole and this rank's own; and what a checkpoint
  /// has of them, by the parameters' names, into their places.
  [[nodiscard]] bool has_part_gradients() const;
  void load_gradients(const std::map<std::string, at::Tensor>& gradients, bool are_parts);

  /// --- whole values ---
  /// All parameters show the whole until `release_whole`. Collective.
  void gather_whole();
  /// Values were only read.
  void release_whole();
  /// All take those of rank `modified_on` of the world. Collective.
  void release_whole(const Group& world, int modified_on);
  /// Whole parameters and buffers under their names, on the CPU of the group's first rank; empty on others. One unit is
  /// whole at a time. Collective.
  NamedTensors full_state();
  /// Whole values, of which every rank takes its parts. Throws CheckpointError with all that is missing, surplus or of
  /// other sizes, and changes nothing then.
  void load_full_state(const NamedTensors& state);
  /// This rank's pieces; those of all ranks together are the model. Buffers, and parameters that are ignored, are the
  /// first rank's.
  [[nodiscard]] std::vector<ShardPiece> sharded_state() const;
  /// Pieces of any number of ranks, which together must be the whole model. Throws CheckpointError, and changes nothing
  /// then.
  void load_sharded_state(const std::vector<ShardPiece>& pieces);
  /// What these do in two steps: all that can fail, and the rest, which the function does that is returned.
  [[nodiscard]] std::function<void()> prepare_load(const std::vector<ShardPiece>& pieces);
  [[nodiscard]] std::function<void()> prepare_load(const NamedTensors& state);

  /// --- parts of parameters: see ParameterShards ---
  [[nodiscard]] bool holds(const at::Tensor& parameter) const override;
  [[nodiscard]] const std::string& name_of(const at::Tensor& parameter) const override;
  [[nodiscard]] at::Tensor whole_of(const at::Tensor& parameter, const at::Tensor& part) const override;
  [[nodiscard]] ShardPiece piece_of(const at::Tensor& parameter, const at::Tensor& part) const override;
  [[nodiscard]] at::Tensor part_of(const at::Tensor& parameter, const at::Tensor& whole) const override;
  [[nodiscard]] bool writes_pieces() const override { return groups().is_first_copy(); }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accel::sharded
