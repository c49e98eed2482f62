#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"
#include "reference/core/value.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/state/step_listener.hpp"

namespace accel {

/// Named parameters (those that require gradients) and buffers of a module, in the module's order, each once.
struct ModelTensors {
  NamedTensors parameters = {};
  std::vector<at::Tensor> buffers = {};
  std::vector<at::Tensor> sparse = {};  ///< the parameters whose gradients are sparse
};

/// Averages gradients over the ranks while backward computes them, with c10d's own Reducer and the very calls of
/// Python's DistributedDataParallel, in its order: other calls give other buckets, and other bits.
///
/// Construction is collective: shapes are compared, then parameters and buffers of rank 0 are copied to all.
/// Throws ArgumentError, on every rank, if the ranks' models differ in number, shape or dtype of their tensors.
/// Thread rule: the rank's thread. Source: torch/nn/parallel/distributed.py.
class DistributedDataParallel {
 public:
  /// `listener` gets the parameters as replicas; null where nobody listens.
  DistributedDataParallel(ModelTensors tensors, Group group, const DistributedDataParallelKwargs& kwargs,
                          std::shared_ptr<StepListener> listener = nullptr);
  ~DistributedDataParallel();

  void before_forward();
  /// `outputs` are searched for unused parameters if the options ask for it. Returns whether it has put others in their
  /// place, of equal values, which the caller goes on with: see through_sink.
  bool after_forward(std::vector<at::Tensor>& outputs);
  /// Whether `after_forward` searches or replaces outputs, so that it must be given all of them.
  [[nodiscard]] bool sees_outputs() const;

  /// Parameters with gradients that the last backward pass kept on this rank although no_sync did not ask for it:
  /// nothing called the prepared model before.
  [[nodiscard]] NamedTensors unreduced() const;
  /// Where the last value that backward added to this parameter's gradient came from; none if gradients of it are not
  /// averaged.
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const;

  /// --- uneven inputs: a rank that has no more batches repeats the others' collectives, with zeros ---
  /// Between these, every forward tells the others that this rank takes part. `notifies`: of several models, the first.
  /// Throws ArgumentError for a model with sparse gradients, whose zeros have no form.
  void begin_join(bool notifies);
  /// Waits for what was told in the last step. Collective with the others' steps.
  void end_join();
  /// Without waiting: after an exception.
  void cancel_join() noexcept;
  /// One step of the others; whether it synchronised gradients. Collective with their forward and backward.
  bool shadow_step();
  /// Parameters and buffers of the rank that was the last, on all. Collective.
  void sync_final_model(bool is_last);
  /// These of the rank that was the last, on all. Collective.
  void sync_final_state(bool is_last, const std::vector<at::Tensor>& tensors);
  /// How many ranks still take part; called by a rank that does not. Collective with the others' forward.
  [[nodiscard]] int num_taking_part();

  struct SyncFlags {
    bool backward = true;  ///< while false, backward keeps gradients local and communicates nothing
    bool forward = true;   ///< whether the next forward brings rank 0's buffers
  };
  SyncFlags sync_flags;
  /// The next backward synchronises, though its forwards were not told that it would.
  void synchronize_next_backward();

  /// --- checkpoints ---
  /// Which gradients share a bucket, and whether the next forward brings rank 0's buffers: with the model they decide
  /// every bit of the steps to come. Between steps. Collective.
  [[nodiscard]] Value state_dict();
  /// Throws CheckpointError if it is no such state, or of another model. One of other bucket sizes has no say in
  /// buckets.
  void load_state_dict(const Value& state);

 private:
  void wait_for_notices();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accel
