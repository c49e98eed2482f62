#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/value.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"
#include "reference/sharded/parameter_shards.hpp"
#include "reference/state/step_listener.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

class DistributedDataParallel;
struct StoredWeight;

/// How one prepared model runs on several ranks: what surrounds its forward, how its gradients synchronise, and what a
/// checkpoint has of it. The handle, the optimizers' gradient path and checkpoints call this interface only.
///
/// | class | parameters | gradients |
/// |---|---|---|
/// | UnshardedModel | complete | this rank's own |
/// | ReplicatedModel | complete | averaged by DDP |
/// | ShardedParallelModel | this rank's shards between steps | reduced to shards |
///
/// Functions that say "collective" are called by every rank, in the same order. Thread rule: the rank's thread.
class ParallelModel {
 public:
  struct Options {
    std::optional<Autocast::Options> autocast = {};          ///< none in full precision
    std::shared_ptr<const Float8Layers> float8_layers = {};  ///< null unless mixed_precision is "fp8"
    std::shared_ptr<StepListener> listener = {};             ///< null where nobody listens
    bool is_trained = true;                                  ///< false: prepared for evaluation alone
  };
  ParallelModel(std::shared_ptr<torch::nn::Module> module, Options options)
      : module_(std::move(module)), options_(std::move(options)) {}
  virtual ~ParallelModel() = default;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  /// The program's module: Accelerator::unwrap_model.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  [[nodiscard]] const Options& options() const { return options_; }
  /// The ranks that together hold the parameters and gradients; null: every rank holds all of them.
  [[nodiscard]] virtual const Group* shard_group() const = 0;
  [[nodiscard]] bool is_sharded() const { return shard_group() != nullptr; }
  /// Throws StateError for a sharded model: `what` is the call that needs complete parameters.
  void check_is_unsharded(const char* what) const;

  // --- forward ------------------------------------------------------------------------------------------------------
  /// Whether `after_forward` needs the tensors of what forward returns.
  [[nodiscard]] virtual bool sees_outputs() const { return options_.autocast.has_value(); }
  /// Throws ArgumentError if `after_forward` needs tensors, which cannot be found in this type.
  void check_outputs_need_no_tree(const std::type_info& output) const;
  /// Whether the model's own collectives run inside forward, too.
  [[nodiscard]] virtual bool communicates_in_forward() const { return false; }
  /// Collective if gradients synchronise.
  virtual void before_forward() = 0;
  /// Whether floating inputs are cast to the dtype that the model computes in.
  [[nodiscard]] virtual bool casts_inputs() const { return false; }
  [[nodiscard]] virtual at::Tensor cast_input(const at::Tensor& tensor) const { return tensor; }
  /// Throws StateError if this error of forward has a cause that the model recognizes.
  virtual void explain(const std::exception& error) const = 0;
  /// Returns whether it has replaced `outputs` by tensors of equal values, with which the caller continues.
  virtual bool after_forward(std::vector<at::Tensor>& outputs) = 0;

  // --- gradients ----------------------------------------------------------------------------------------------------
  /// Undoes a change of gradient synchronisation; empty if nothing was changed.
  using Restore = std::function<void()>;
  /// Backward communicates nothing: no_sync.
  [[nodiscard]] virtual Restore suspend_sync() = 0;
  /// The next backward synchronises gradients of forwards under no_sync, too.
  [[nodiscard]] virtual Restore sync_next_backward() = 0;
  /// For join_uneven_inputs: whose collectives a rank without batches repeats; null: there are none. Throws StateError
  /// if they cannot be repeated.
  [[nodiscard]] virtual DistributedDataParallel* joinable() const = 0;
  /// Parameters whose gradients the last backward should have averaged and did not.
  [[nodiscard]] virtual NamedTensors unreduced() const = 0;
  /// Where the last value that backward added to this parameter's gradient came from; none if the model does not
  /// average its gradient.
  [[nodiscard]] virtual std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const = 0;
  /// This rank's gradients of those of `parameters` that are sharded, for a norm over `shard_group`.
  [[nodiscard]] virtual std::vector<at::Tensor> sharded_gradients(const std::vector<at::Tensor>& parameters) const = 0;

  // --- the optimizer's step -----------------------------------------------------------------------------------------
  /// Parameters show what an optimizer steps.
  virtual void before_step() = 0;
  virtual void after_step() = 0;
  /// Where the state of its optimizers is allocated; null: LibTorch's memory.
  [[nodiscard]] virtual std::shared_ptr<sharded::MemorySource> make_optimizer_memory() const = 0;
  /// This rank's part of a parameter and of tensors of the same shape; null if the parameter is complete or another
  /// model's.
  [[nodiscard]] virtual const sharded::ParameterShards* shards_of(const at::Tensor& parameter) const = 0;

  // --- complete values ----------------------------------------------------------------------------------------------
  /// Parameters are complete on every rank until `release_parameters`. Collective.
  virtual void gather_parameters() = 0;
  /// `modified_on`: the rank of `world` whose values all ranks take; none: changes are lost. Collective.
  virtual void release_parameters(const Group& world, std::optional<int> modified_on) = 0;
  /// Parameters and buffers under their names, complete, on the CPU: of a sharded model on the main process only, empty
  /// on others, with floating tensors in `sharded_dtype` if that is given. Collective.
  [[nodiscard]] virtual NamedTensors full_state(std::optional<at::ScalarType> sharded_dtype) = 0;

  // --- checkpoints --------------------------------------------------------------------------------------------------
  /// FULL_STATE_DICT, SHARDED_STATE_DICT or LOCAL_STATE_DICT.
  [[nodiscard]] virtual std::string state_dict_type() const { return "FULL_STATE_DICT"; }
  [[nodiscard]] bool is_saved_complete() const { return state_dict_type() == "FULL_STATE_DICT"; }
  /// Whether files are named as FSDP's.
  [[nodiscard]] virtual bool has_fsdp_file_names() const { return false; }
  /// What a checkpoint has of the model under FULL_STATE_DICT: the module's own tensors, or those of `full_state`;
  /// empty under other types. Collective.
  [[nodiscard]] virtual NamedTensors weights() = 0;
  /// This rank's pieces, which are the model together with those of all ranks; empty if every rank has all.
  [[nodiscard]] virtual std::vector<sharded::ShardPiece> pieces() const = 0;
  /// Checks that complete tensors by name are the model's; the returned function loads them. Throws CheckpointError,
  /// which may begin with `what`.
  [[nodiscard]] virtual std::function<void()> prepare_load(const std::string& what,
                                                           const std::map<std::string, StoredWeight>& weights) = 0;
  /// What else decides bits of the steps to come, such as DDP's buckets. Between steps. Collective.
  [[nodiscard]] virtual Value sync_state() const = 0;
  virtual void load_sync_state(const Value& state) = 0;
  /// Inside an accumulation window: sizes of a parameter's gradient, and gradients by name, as they were when
  /// `sync_state` was saved.
  [[nodiscard]] virtual std::vector<std::int64_t> gradient_sizes(const at::Tensor& parameter,
                                                                 const Value& sync_state) const = 0;
  virtual void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) = 0;

  // --- memory -------------------------------------------------------------------------------------------------------
  /// What an ActivationMeter adds to.
  [[nodiscard]] virtual sharded::MemoryAccount& memory() = 0;
  /// What this rank holds now and at most, except for optimizers' state.
  [[nodiscard]] virtual sharded::MemoryAccount memory_account() = 0;

 protected:
  /// Why `sees_outputs`, for a message.
  [[nodiscard]] virtual const char* reason_to_see_outputs() const { return "mixed precision"; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Options options_;
};

}  // namespace accel
