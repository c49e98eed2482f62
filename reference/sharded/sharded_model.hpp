#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/plugins/sharding.hpp"
#include "reference/modules/divided_parameter.hpp"
#include "reference/sharded/flat_parameter.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/unit_plan.hpp"
#include "reference/state/step_observer.hpp"

namespace torch::nn {
class Module;
}

namespace accel::sharded {

/// A model whose parameters, gradients and optimizer state are sharded over ranks: ZeRO, in the form of PyTorch's FSDP.
///
/// Units (see plan_units) are gathered before they compute and freed afterwards; their gradients are reduced to shards
/// while backward continues. Between steps the module's parameters show this rank's parts, which the optimizer steps.
/// Every rank must run the same units in the same order. After an exception the parameters have the values of the last
/// optimizer step.
///
/// Construction is collective: it compares shapes, and broadcasts rank 0's values if the options ask for it. Throws
/// ArgumentError on every rank if the models differ, ConfigError if the wrap policy matches no module. Thread rule: the
/// rank's thread. Source: torch/distributed/fsdp/_runtime_utils.py.
class ShardedModel final {
 public:
  /// `device`: where units compute.
  ShardedModel(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options,
               c10::Device device = c10::kCPU);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  [[nodiscard]] const ModelPlan& plan() const;
  [[nodiscard]] const ShardGroups& groups() const;
  [[nodiscard]] const ShardingOptions& options() const;
  [[nodiscard]] const MemoryAccount& memory() const;
  [[nodiscard]] MemoryAccount& memory();

  /// --- the model's own call ---
  void before_forward();
  /// May replace `outputs` by tensors of equal values.
  void after_forward(std::vector<at::Tensor>& outputs);
  /// After an error in forward: throws StateError if a unit was probably called without accel::call, else returns.
  void explain(const std::exception& error) const;
  /// Whether floating inputs of the model are cast to its units' dtype.
  [[nodiscard]] bool casts_inputs() const { return options().param_dtype.has_value(); }
  [[nodiscard]] at::Tensor cast_input(const at::Tensor& tensor) const;

  bool sync_gradients = true;  ///< while false, backward keeps full gradients on this rank and reduces nothing
  /// Between the two, micro-batches may alternate their forwards and backwards: parameters are full, and so are
  /// gradients, which `end_micro_batches` reduces if gradients are synchronized. Collective.
  void begin_micro_batches();
  void end_micro_batches();
  /// Parameters show this rank's parts, whatever happened before. Call it before an optimizer steps.
  void show_shards();
  /// Notes that the optimizer has stepped.
  void mark_stepped();

  /// Gradients of `parameters`, grouped as FSDP1 computes norms of them, in the order of units: one tensor per
  /// parameter if the layout is aligned, else one per flat buffer of which all parameters were passed.
  [[nodiscard]] std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) const;

  /// Gradients that the program has written since the last call: see GradientMarks.
  [[nodiscard]] NamedTensors take_written_gradients();

  /// Inside an accumulation window: whether the gradients are those of parts, or full ones of this rank alone.
  [[nodiscard]] bool has_part_gradients() const;
  /// Sets gradients from a checkpoint, by the parameters' names.
  void load_gradients(const std::map<std::string, at::Tensor>& gradients, bool are_parts);

  /// --- full values ---
  /// Gives the module complete parameters of its own again, without gradients. The model can't be used afterwards.
  /// Collective.
  void dissolve();
  /// All parameters show full values until `release_full_parameters`. Collective.
  void gather_full_parameters();
  /// Ends `gather_full_parameters` if the values were only read.
  void release_full_parameters();
  /// Ends `gather_full_parameters` and gives every rank the values of rank `modified_on` of `world`. Collective.
  void release_full_parameters(const Group& world, int modified_on);
  /// Full parameters and buffers by name, on the CPU of the group's first rank; empty on the others. Gathers one unit
  /// at a time. Of several tensor-parallel peers only the first, unless `on_every_peer`. Collective.
  NamedTensors full_state(bool on_every_peer = false);
  /// Loads full values; every rank keeps its parts. Throws CheckpointError, which lists all tensors that are missing,
  /// unexpected or of other sizes, and leaves the model unchanged then.
  void load_full_state(const NamedTensors& state);
  /// This rank's parts; those of all ranks together are the model. The first rank adds buffers and ignored parameters.
  [[nodiscard]] std::vector<TensorPart> sharded_state() const;
  /// Loads parts of any number of ranks, which together must be the full model. Throws CheckpointError, and leaves the
  /// model unchanged then.
  void load_sharded_state(const std::vector<TensorPart>& parts);
  /// Loads in two steps: this call does everything that can fail; the returned function then changes the model.
  [[nodiscard]] std::function<void()> prepare_load(const std::vector<TensorPart>& parts);
  [[nodiscard]] std::function<void()> prepare_load(const NamedTensors& state);

  /// The parameters that ranks shard, and how. Each has one division, a FlatShard.
  [[nodiscard]] std::vector<std::pair<at::Tensor, DividedParameter>> divided_parameters() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accel::sharded
