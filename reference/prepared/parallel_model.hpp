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
#include "reference/core/borrowed.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/value.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/unaveraged_gradients.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/prepared/cut_parameters.hpp"
#include "reference/prepared/peer_check.hpp"
#include "reference/prepared/registered_buffers.hpp"
#include "reference/prepared/registered_parameters.hpp"
#include "reference/sharded/memory_account.hpp"
#include "reference/sharded/memory_scope.hpp"
#include "reference/sharded/parameter_shards.hpp"
#include "reference/state/step_listener.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

class DistributedDataParallel;
class MasterWeights;
struct RankContext;
struct StoredWeight;

/// Runs one prepared model on several ranks: it wraps forward, synchronizes gradients, and provides the model's part of
/// a checkpoint. The handle, the gradient pipeline and checkpoints use only this interface.
///
/// | class | parameters | gradients |
/// |---|---|---|
/// | UnshardedModel | complete | this rank's own |
/// | ReplicatedModel | complete | averaged by DDP |
/// | ShardedParallelModel | this rank's shards between steps | reduced to shards |
///
/// Every rank must call functions marked "Collective", in the same order. Thread rule: the rank's thread.
class ParallelModel {
 public:
  struct Options {
    std::optional<Autocast::Options> autocast = {};          ///< empty in full precision
    std::shared_ptr<const Float8Layers> float8_layers = {};  ///< null unless mixed_precision is "fp8"
    std::shared_ptr<StepListener> listener = {};             ///< may be null
    std::shared_ptr<MasterWeights> masters = {};             ///< null: the optimizer steps the weights themselves
    bool channels_last = false;                              ///< 4-d inputs are converted to that memory format
    bool is_trained = true;                                  ///< false: prepared for evaluation only
    Group peers = {};                                        ///< the tensor-parallel ranks
  };
  ParallelModel(std::shared_ptr<torch::nn::Module> module, Options options)
      : module_(std::move(module)),
        options_(std::move(options)),
        registered_(*module_),
        users_(module_),
        peer_check_(options_.peers),
        cuts_(*module_) {}
  virtual ~ParallelModel() = default;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  /// The user's module, as Accelerator::unwrap_model returns it.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  [[nodiscard]] const Options& options() const { return options_; }
  /// Handles of the program; without one, a module that prepare has borrowed may have ended.
  [[nodiscard]] detail::Users& users() { return users_; }
  /// The ranks that together hold the parameters and gradients; null: every rank holds all of them.
  [[nodiscard]] virtual const Group* shard_group() const = 0;
  [[nodiscard]] bool is_sharded() const { return shard_group() != nullptr; }
  /// The parameters of which each tensor-parallel or expert-parallel rank holds a part.
  [[nodiscard]] const CutParameters& cuts() const { return cuts_; }
  /// Throws StateError for a sharded model, one with divided layers and one with master weights: `what` is the call
  /// that needs complete parameters.
  void check_is_unsharded(const char* what) const;

  // --- forward ------------------------------------------------------------------------------------------------------
  /// Whether `after_forward` needs the tensors that forward returns.
  [[nodiscard]] virtual bool needs_outputs() const { return options_.autocast.has_value(); }
  /// Throws ArgumentError if `after_forward` needs tensors. Called for a type in which none can be found.
  void check_outputs_not_needed(const std::type_info& output) const;
  /// Whether the model also runs collectives inside forward.
  [[nodiscard]] virtual bool communicates_in_forward() const { return false; }
  /// Whether the module had registered the parameter when it was prepared.
  [[nodiscard]] bool registers(const at::Tensor& parameter) const { return registered_.contains(parameter); }
  /// Throws StateError if the module was prepared again, or, with gradients enabled, if its parameters are no longer
  /// the tensors that were prepared.
  void check_current(const char* what);
  /// `buffers`: counted before and after the model was prepared.
  void watch_buffers(RegisteredBuffers buffers) { buffers_ = std::move(buffers); }
  /// Warns of buffers that the module no longer writes: see RegisteredBuffers.
  void check_buffers(const RankContext& context) const;
  /// Whether `compare_inputs` compares the inputs of the next forward: see PeerCheck.
  [[nodiscard]] bool awaits_inputs() const;
  void compare_inputs(const std::vector<at::Tensor>& inputs, const std::vector<TensorPlacement>& placements) {
    peer_check_.compare_inputs(inputs, placements);
  }
  /// Compares the gradients of complete parameters over tensor-parallel ranks, before the first step: see PeerCheck.
  void compare_gradients();
  /// Ends this preparation of the module, which is prepared again: its parameters are complete afterwards. Collective
  /// for a sharded model.
  virtual void retire() { is_retired_ = true; }
  /// Collective if gradients synchronize.
  virtual void before_forward() = 0;
  /// Whether `cast_input` changes inputs: to the dtype or the memory format in which the model computes.
  [[nodiscard]] virtual bool casts_inputs() const { return false; }
  [[nodiscard]] virtual at::Tensor cast_input(const at::Tensor& tensor) const { return tensor; }
  /// Throws StateError if this error of forward has a cause that the model recognizes.
  virtual void explain(const std::exception& error) const = 0;
  /// The same for an error of a backward pass.
  virtual void explain_backward(const std::exception&) const {}
  /// Returns whether it has replaced `outputs` by tensors of equal values. If so, the caller must use them.
  virtual bool after_forward(std::vector<at::Tensor>& outputs) = 0;

  // --- gradients ----------------------------------------------------------------------------------------------------
  /// Undoes a change of gradient synchronization; empty if nothing changed.
  using Restore = std::function<void()>;
  /// Disables gradient synchronization in backward: no_sync.
  [[nodiscard]] virtual Restore suspend_sync() = 0;
  /// Makes the next backward synchronize gradients even of forwards under no_sync.
  [[nodiscard]] virtual Restore sync_next_backward() = 0;
  /// For join_uneven_inputs: the DDP wrapper whose collectives a rank without batches repeats; null if there is none.
  /// Throws StateError if the model's collectives cannot be repeated.
  [[nodiscard]] virtual DistributedDataParallel* joinable() const = 0;
  /// Gradients since the last call that should have been averaged but were not. Throws StateError if the last backward
  /// pass left parameters without a gradient that averaging waits for.
  [[nodiscard]] virtual UnaveragedGradients take_unaveraged() = 0;
  /// The origin of the last value that backward added to this parameter's gradient; empty if the model does not average
  /// its gradient.
  [[nodiscard]] virtual std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const = 0;
  /// This rank's gradient shards of those `parameters` that are sharded, for a norm over `shard_group`.
  [[nodiscard]] virtual std::vector<at::Tensor> sharded_gradients(const std::vector<at::Tensor>& parameters) const = 0;

  // --- the optimizer's step -----------------------------------------------------------------------------------------
  /// Makes the parameters show the values that an optimizer steps: shards, or float32 master weights.
  virtual void before_step() = 0;
  /// Undoes `before_step`, also one that threw. Does not throw unless `has_stepped`.
  virtual void after_step(bool has_stepped) = 0;
  /// Creates the memory in which the state of the model's optimizers is allocated; null: LibTorch's memory.
  [[nodiscard]] virtual std::shared_ptr<sharded::MemorySource> make_optimizer_memory() const = 0;
  /// The division of a parameter, and of tensors of the same shape, over ranks: by shards, by a cut, or both. Null if
  /// the parameter is complete or belongs to another model.
  [[nodiscard]] virtual const sharded::ParameterShards* shards_of(const at::Tensor& parameter) const = 0;

  // --- complete values ----------------------------------------------------------------------------------------------
  /// Makes parameters complete on every rank until `release_parameters`. Collective.
  virtual void gather_parameters() = 0;
  /// `modified_on`: the rank of `world` whose values all ranks adopt; empty: changes are discarded. Collective.
  virtual void release_parameters(const Group& world, std::optional<int> modified_on) = 0;
  /// Returns complete parameters and buffers by name, on the CPU. For a sharded model: on the main process only and
  /// empty on others, with floating tensors in `sharded_dtype` if given. Collective.
  [[nodiscard]] virtual NamedTensors full_state(std::optional<at::ScalarType> sharded_dtype) = 0;

  // --- checkpoints --------------------------------------------------------------------------------------------------
  /// FULL_STATE_DICT, SHARDED_STATE_DICT or LOCAL_STATE_DICT.
  [[nodiscard]] virtual std::string state_dict_type() const { return "FULL_STATE_DICT"; }
  [[nodiscard]] bool is_saved_complete() const { return state_dict_type() == "FULL_STATE_DICT"; }
  /// Whether files have the names of FSDP checkpoints.
  [[nodiscard]] virtual bool has_fsdp_file_names() const { return false; }
  /// The tensors that a FULL_STATE_DICT checkpoint stores: the module's own, or those of `full_state`. Empty for other
  /// types. Collective.
  [[nodiscard]] virtual NamedTensors weights() = 0;
  /// This rank's pieces; the pieces of all ranks form the model. Empty if every rank has the complete model.
  [[nodiscard]] virtual std::vector<sharded::ShardPiece> pieces() const = 0;
  /// Checks that complete tensors match the model by name and returns a function that loads them. Throws
  /// CheckpointError, whose message may begin with `what`.
  [[nodiscard]] virtual std::function<void()> prepare_load(const std::string& what,
                                                           const std::map<std::string, StoredWeight>& weights) = 0;
  /// Other state that determines the bits of later steps, such as DDP's buckets. Call it between steps. Collective.
  [[nodiscard]] virtual Value sync_state() const = 0;
  virtual void load_sync_state(const Value& state) = 0;
  /// For a checkpoint inside an accumulation window: the sizes of a parameter's gradient when `sync_state` was saved.
  [[nodiscard]] virtual std::vector<std::int64_t> gradient_sizes(const at::Tensor& parameter,
                                                                 const Value& sync_state) const = 0;
  /// Loads gradients by name, as they were when `sync_state` was saved.
  virtual void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) = 0;

  // --- memory -------------------------------------------------------------------------------------------------------
  /// The account to which an ActivationMeter adds.
  [[nodiscard]] virtual sharded::MemoryAccount& memory() = 0;
  /// The current and peak memory of this rank for the model, without optimizer state.
  [[nodiscard]] virtual sharded::MemoryAccount memory_account() = 0;

 protected:
  /// Throws StateError for an error about sizes in a model whose layers tensor-parallel ranks divide.
  void explain_division(const std::exception& error) const;
  /// The feature that requires `needs_outputs`, for error messages.
  [[nodiscard]] virtual const char* reason_outputs_are_needed() const { return "mixed precision"; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Options options_;
  RegisteredParameters registered_;
  RegisteredBuffers buffers_;
  detail::Users users_;
  PeerCheck peer_check_;
  bool is_retired_ = false;

 protected:
  CutParameters cuts_;
};

}  // namespace accel
