#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/core/named_tensors.hpp"

namespace accel {

/// The parameters of a prepared model, which are to be equal on all ranks after every update.
struct Replicas {
  NamedTensors parameters = {};
  bool are_local = false;  ///< the last backward kept gradients on this rank, so that ranks may differ: no_sync, or a
                           ///< step that is refused
};

/// Observes what a rank's training does between its collectives. The simulator uses it to time, fail and check ranks;
/// real backends have none.
///
/// Thread rule: the rank's thread.
class StepListener {
 public:
  virtual ~StepListener() = default;
  /// What the rank does from here on: "forward", "backward", "batch_norm" (in it), "optimizer", "other"; static
  /// storage. Returns what it did before.
  virtual std::string_view enter_phase(std::string_view phase) = 0;
  /// The backward pass of a micro-batch with this loss begins; they are counted from 0.
  virtual void begin_backward(const at::Tensor& loss) = 0;
  /// A model was prepared whose parameters hold equal values on all ranks now. Observed as long as somebody else owns
  /// it.
  virtual void add_replicas(const std::shared_ptr<const Replicas>& replicas) = 0;
  /// The optimizer is about to step, or has.
  virtual void before_update() = 0;
  virtual void after_update() = 0;
  /// Ranks that may have made different numbers of updates have equal parameters again.
  virtual void end_join() = 0;
};

/// A phase of a rank that may have no listener; the one before when it ends.
class PhaseScope {
 public:
  PhaseScope(StepListener* listener, std::string_view phase) : listener_(listener) {
    if (listener_ != nullptr) before_ = listener_->enter_phase(phase);
  }
  ~PhaseScope() {
    if (listener_ != nullptr) listener_->enter_phase(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  StepListener* listener_;
  std::string_view before_;
};

}  // namespace accel
