#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/mesh/parameter_layout.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

/// The parameters of a prepared model, which must be equal after every update on all ranks that hold the same parts.
struct Replicas {
  NamedTensors parameters = {};
  std::vector<ParameterLayout> layouts = {};  ///< one per parameter; empty: every rank holds all of each
  /// The rank of "pp" whose stages these are; ranks with other stages have other parameters, perhaps none.
  std::optional<int> stage_rank = {};
  /// The last backward pass kept its gradients local, so ranks may differ: no_sync, or a skipped step.
  bool are_local = false;
};

/// Observes the training of a rank between its collectives. The simulator uses it to time, fail and check ranks, and
/// `sim-run compare` to record them on any backend. Otherwise real ranks have no listener.
///
/// Thread rule: the rank's thread.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Starts a phase: "forward", "backward", "batch_norm" (inside the others), an action of a pipeline such as "2F0",
  /// "optimizer" or "other". The string must live as long as the process. Returns the previous phase.
  virtual std::string_view enter_phase(std::string_view phase) = 0;
  /// Called before the backward pass of a micro-batch with this loss. Micro-batches are counted from 0.
  virtual void begin_backward(const at::Tensor& loss) = 0;
  /// Called after a model was prepared; its parameters are equal on all ranks. The listener observes it as long as
  /// somebody else owns it.
  virtual void add_replicas(const std::shared_ptr<const Replicas>& replicas) = 0;
  /// Called after a model was prepared, on every backend.
  virtual void add_model(const std::shared_ptr<torch::nn::Module>& /*model*/) {}
  /// Whether the next two are called around each call of a prepared model.
  [[nodiscard]] virtual bool observes_tensors() const { return false; }
  virtual void before_forward(const torch::nn::Module& /*model*/, const std::vector<at::Tensor>& /*inputs*/) {}
  virtual void after_forward(const torch::nn::Module& /*model*/, const std::vector<at::Tensor>& /*outputs*/) {}
  /// Called before and after an optimizer step.
  virtual void before_update() = 0;
  virtual void after_update() = 0;
  /// Returns the rank's collectives since the last time, such as "all_reduce #17 of group world (train.cpp:42)", in
  /// order; none if nobody records them. They are recorded from the first time on.
  [[nodiscard]] virtual std::vector<std::string> take_collectives() { return {}; }
  /// Called when ranks that may have made different numbers of updates have equal parameters again.
  virtual void end_join() = 0;
};

/// Enters a phase, and restores the previous one when the scope ends. `listener` may be null.
class PhaseScope {
 public:
  PhaseScope(StepObserver* listener, std::string_view phase) : listener_(listener) {
    if (listener_ != nullptr) before_ = listener_->enter_phase(phase);
  }
  ~PhaseScope() {
    if (listener_ != nullptr) listener_->enter_phase(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  StepObserver* listener_;
  std::string_view before_;
};

}  // namespace accel
