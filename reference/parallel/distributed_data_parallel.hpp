#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/parallel/buffer_sync.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/unaveraged_gradients.hpp"
#include "reference/state/step_observer.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// Named parameters and buffers of a module, in the module's order, each listed once.
struct ModelTensors {
  NamedTensors parameters = {};
  BufferSync::Buffers buffers = {};
  std::vector<at::Tensor> sparse = {};        ///< parameters whose gradients are sparse
  std::vector<at::Tensor> masters = {};       ///< float32 copies of parameters, copied between ranks with them
  std::vector<ParameterLayout> layouts = {};  ///< one per parameter, or none, as in Replicas
  std::optional<int> stage_rank = {};         ///< as in Replicas
};

/// Averages gradients over the ranks while backward computes them. It drives c10d's Reducer with the same calls in the
/// same order as Python's DistributedDataParallel: other calls would give other buckets, and therefore other bits.
///
/// A forward with gradients follows parameters that the program has frozen, unfrozen, converted or loaded. The first
/// one with a parameter that requires a gradient, usually construction, is collective: it compares the ranks' shapes,
/// then copies rank 0's parameters and buffers to all ranks. Throws ArgumentError, on every rank, if the ranks' models
/// differ in the number, shape or dtype of their tensors. Thread rule: the rank's thread. Source:
/// torch/nn/parallel/distributed.py.
class DistributedDataParallel {
 public:
  /// Registers the parameters with `listener` as replicas; `listener` may be null.
  DistributedDataParallel(ModelTensors tensors, Group group, const DistributedDataParallelKwargs& kwargs,
                          std::shared_ptr<StepObserver> listener = nullptr);
  ~DistributedDataParallel();

  /// Leaves the parameters to others: nothing is averaged any more.
  void end();
  void before_forward();
  /// Prepares the reducer for backward, and searches `outputs` for unused parameters if the options ask for it. Returns
  /// true if it replaced the outputs by tensors of equal values, which the caller must use from then on: see
  /// through_sink.
  bool after_forward(std::vector<at::Tensor>& outputs);
  /// Whether `after_forward` searches or replaces outputs, so that the caller must pass all of them.
  [[nodiscard]] bool needs_outputs() const;

  [[nodiscard]] int num_replicas() const;
  /// Whether any parameter has required a gradient so far.
  [[nodiscard]] bool trains() const;
  /// Gradients since the last call that were not averaged although no_sync was not active. Call it before a step.
  [[nodiscard]] UnaveragedGradients take_unaveraged();
  /// Notes that gradients which the program has written are right, such as those of a checkpoint.
  void accept_gradients();
  /// The next backward pass reduces nothing although a forward pass before the suspension has prepared for one, and the
  /// next forward pass exchanges no buffers. Under suspended synchronization.
  void suspend_reduction();
  /// The ranks of the group have changed: averages over the present ones, in the same buckets.
  void follow_group();
  /// Throws StateError, which names the parameters, if the last backward pass left some without a gradient.
  void check_complete(const char* what) const;
  /// Throws StateError that names buffers, if they are the cause of this error of a backward pass.
  void explain_backward(const std::exception& error) const;
  /// Which kind of backward pass last added to this parameter's gradient; nullopt if its gradients are not averaged.
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const;

  /// --- uneven inputs: a rank without batches shadows the others' collectives with zeros ---
  /// Starts join mode: until `end_join`, every forward notifies the joined ranks that this rank still has batches. Of
  /// several models only the first `notifies`. Throws ArgumentError for a model with sparse gradients, which cannot be
  /// shadowed.
  void begin_join(bool notifies);
  /// Ends join mode after waiting for the last step's notifications. Collective with the others' steps.
  void end_join();
  /// Ends join mode without waiting, for use after an exception.
  void cancel_join() noexcept;
  /// Shadows one step of the other ranks and returns whether that step synchronized gradients. Collective with their
  /// forward and backward.
  bool shadow_step();
  /// Broadcasts parameters and buffers from the rank that ran out of batches last. Collective.
  void sync_final_model(bool is_last);
  /// Broadcasts `tensors` from the rank that ran out of batches last. Collective.
  void sync_final_state(bool is_last, const std::vector<at::Tensor>& tensors);
  /// Number of ranks that still have batches; called by a rank that has none. Collective with the others' forward.
  [[nodiscard]] int num_active_ranks();

  struct SyncFlags {
    bool backward = true;  ///< while false, backward keeps gradients local and communicates nothing
    bool forward = true;   ///< whether the next forward broadcasts rank 0's buffers
  };
  SyncFlags sync_flags;
  /// Makes the next backward synchronize gradients even though its forwards ran without synchronization.
  void synchronize_next_backward();

  /// --- checkpoints ---
  /// Which gradients share a bucket, and whether the next forward broadcasts rank 0's buffers. Together with the model
  /// these determine every bit of the following steps. Call it between steps. Collective.
  [[nodiscard]] Value state_dict();
  /// Throws CheckpointError if `state` is malformed or belongs to another model. Buckets of a state with other bucket
  /// sizes are ignored: the reducer then begins as that of a new model, as it does for a state from before the first
  /// backward pass.
  void load_state_dict(const Value& state);

 private:
  void wait_for_notices();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accel
