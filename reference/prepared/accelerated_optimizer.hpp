#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reference/core/borrowed.hpp"
#include "reference/core/never.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/prepared/gradient_pipeline.hpp"
#include "reference/state/rank_context.hpp"

namespace torch::optim {
class OptimizerParamGroup;
}

namespace accel {

/// A prepared optimizer. `step` and `zero_grad` act only in micro-batches that synchronize gradients. `step` skips
/// gradients that overflowed under fp16 or that the gradient guard rejects.
///
///     auto optimizer = accelerator.prepare(sgd);
///     optimizer.step();             // optimizer->step() is the same call
///     optimizer.set_lr(0.01);
///
/// This is a handle: copies share one state. The Accelerator forgets an optimizer that prepare has borrowed when the
/// last handle ends; both may end in any order if neither is used between. An optimizer that was passed as a shared_ptr
/// or a temporary is kept. Thread rule: the rank's thread. Source: accelerate/optimizer.py,
/// AcceleratedOptimizer.
class AcceleratedOptimizer {
 public:
  /// `steps_in_backward`: as in DeepSpeed, backward takes the step, and `step` and `zero_grad` do nothing.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, RankContext& context,
                       std::shared_ptr<GradientPipeline> path, bool steps_in_backward = false)
      : optimizer_(std::move(optimizer)),
        context_(&context),
        path_(std::move(path)),
        steps_in_backward_(steps_in_backward),
        status_(std::make_shared<Status>(optimizer_)) {}
  /// Borrows an optimizer that outlives the handle.
  AcceleratedOptimizer(torch::optim::Optimizer& optimizer, RankContext& context, std::shared_ptr<GradientPipeline> path)
      : AcceleratedOptimizer(detail::borrowed(optimizer), context, std::move(path)) {}
  /// An empty handle, as release_memory leaves it.
  explicit AcceleratedOptimizer(std::nullptr_t) {}

  /// Updates the parameters. `closure`, which LBFGS needs, zeroes the gradients, runs the model and
  /// Accelerator::backward, and returns the loss. Throws StateError if gradients were not averaged over the ranks; see
  /// GradientPipeline::step.
  void step(const GradientPipeline::LossClosure& closure = {}, StepOptions options = {});
  void step(StepOptions options) { step({}, options); }
  /// Resets gradients; by default to undefined tensors, as in Python.
  void zero_grad(bool set_to_none = true);
  /// Whether the last `step` in a micro-batch that synchronizes gradients was skipped, so parameters are unchanged.
  /// Waits for the device if that decided it, which it does for fp16 with a fused optimizer of accel::optim.
  [[nodiscard]] bool step_was_skipped() const { return status_->outcome.was_skipped(); }
  /// Restores step_was_skipped() from a checkpoint.
  void set_step_was_skipped(bool was_skipped) { status_->outcome = StepOutcome(was_skipped); }
  /// Learning rate of a parameter group. Throws ArgumentError if the group does not exist.
  [[nodiscard]] double lr(std::size_t group = 0) const;
  /// Sets the learning rate of all groups, or of one. A schedule overwrites it in its next step.
  void set_lr(double lr);
  void set_lr(double lr, std::size_t group);
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] bool steps_any_of(const std::vector<at::Tensor>& parameters) const;
  /// Adds parameters of prepared models, with options of their own. Throws StateError for a sharded model, whose
  /// optimizer gets all groups before `prepare`.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  template <typename Optimizer>
    requires std::same_as<Optimizer, torch::optim::Optimizer>
  operator Optimizer&() const {
    static_assert(
        detail::kNever<Optimizer>,
        "a prepared optimizer is no torch::optim::Optimizer, whose step would ignore accumulation, scaling and "
        "averaging; pass the handle itself, or handle.optimizer() to code that does not step");
    return *optimizer_;
  }
  AcceleratedOptimizer* operator->() { return this; }
  const AcceleratedOptimizer* operator->() const { return this; }

  /// A copy for the program. The Accelerator's own copy does not count as a user of the optimizer.
  [[nodiscard]] AcceleratedOptimizer handle() const;
  /// Whether all handles of the program have ended, so that the optimizer may have ended too.
  [[nodiscard]] bool has_no_handle() const { return status_->users.have_ended(); }
  /// Whether `step` was called.
  [[nodiscard]] bool was_called() const { return status_->was_called; }

 private:
  friend class TrainingStep;
  friend class AcceleratedScheduler;
  void take_step();
  void update(const GradientPipeline::LossClosure& closure = {}, StepOptions options = {});
  void clear_gradients(bool set_to_none);
  // Whether the parameters have changed since the last backward although `step` was never called. Called in each
  // backward; returns true at most once.
  [[nodiscard]] bool was_stepped_directly();

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  RankContext* context_ = nullptr;
  std::shared_ptr<GradientPipeline> path_;
  bool steps_in_backward_ = false;
  struct Status {
    explicit Status(const std::shared_ptr<torch::optim::Optimizer>& optimizer) : users(optimizer) {}
    StepOutcome outcome;
    bool was_called = false;
    std::int64_t num_updates = 0;     // skipped ones included
    std::optional<double> norm = {};  // of the first parameter in the last backward, until `step` is called
    detail::Users users;
  };
  std::shared_ptr<Status> status_ = std::make_shared<Status>(nullptr);
  std::shared_ptr<const void> use_;
};

struct SchedulerOptions {
  bool step_with_optimizer = true;
  bool split_batches = false;
  std::optional<int> num_batches_per_step = {};  ///< ranks that read different batches; default: the world size
  /// Samples per step of the schedule, without duplicates. Learning rates then depend only on the number of samples
  /// seen, not on world size, batch size or accumulation. Unset: one step per batch of all ranks, as in Accelerate.
  std::optional<std::int64_t> samples_per_step = {};
  bool steps_in_backward =
      false;  ///< for a schedule of a DeepSpeed file, which advances in backward: `step` does nothing
};

/// A prepared schedule. It advances when its optimizer steps: once per data-parallel rank, because a step over N such
/// ranks reads N batches, or once if batches are split. A schedule with `total_steps` never advances beyond them. A
/// call after several steps of the optimizer, such as one per epoch, is reported: it would advance N times.
///
/// This is a handle on the user's schedule, with the lifetime rule of AcceleratedOptimizer. Thread rule: the rank's
/// thread. Source: accelerate/scheduler.py, AcceleratedScheduler.
class AcceleratedScheduler {
 public:
  /// Skips a step if one of `optimizers` skipped its step.
  AcceleratedScheduler(std::shared_ptr<LRScheduler> scheduler, std::vector<AcceleratedOptimizer> optimizers,
                       RankContext& context, std::shared_ptr<GradientPipeline> path, SchedulerOptions options);
  /// Borrows a schedule that outlives the handle.
  AcceleratedScheduler(LRScheduler& scheduler, std::vector<AcceleratedOptimizer> optimizers, RankContext& context,
                       std::shared_ptr<GradientPipeline> path, SchedulerOptions options)
      : AcceleratedScheduler(detail::borrowed(scheduler), std::move(optimizers), context, std::move(path), options) {}
  /// An empty handle, as release_memory leaves it.
  explicit AcceleratedScheduler(std::nullptr_t) {}

  /// Advances the schedule. Call it after the optimizer's step.
  void step() {
    advance([this] { scheduler_->step(); });
  }
  /// Advances with the metric of ReduceLROnPlateau or GreedyLR, or with the epoch of CosineAnnealingWarmRestarts. The
  /// metric must be equal on every rank (`gather` it first); otherwise learning rates diverge.
  void step(double metric) {
    advance([this, metric] { scheduler_->step(metric); });
  }
  [[nodiscard]] std::vector<double> get_last_lr() const { return scheduler_->get_last_lr(); }
  [[nodiscard]] LRScheduler& scheduler() const { return *scheduler_; }
  AcceleratedScheduler* operator->() { return this; }
  const AcceleratedScheduler* operator->() const { return this; }
  /// As for AcceleratedOptimizer.
  [[nodiscard]] AcceleratedScheduler handle() const;
  [[nodiscard]] bool has_no_handle() const { return counted_->users.have_ended(); }
  /// The state of the schedule, and the number of samples that it has counted.
  [[nodiscard]] Value state_dict() const;
  void load_state_dict(const Value& state);

 private:
  friend class TrainingStep;
  // Advances after the optimizer's step in backward, for schedules with steps_in_backward.
  void take_step();
  void advance(const std::function<void()>& step);
  bool has_skipped_optimizer() const;
  bool has_ended() const;
  [[nodiscard]] int steps_per_call() const;
  [[nodiscard]] std::int64_t num_updates() const;
  void warn_if_sparse();
  std::int64_t samples_of_window();

  std::shared_ptr<LRScheduler> scheduler_;
  std::vector<AcceleratedOptimizer> optimizers_;
  RankContext* context_ = nullptr;
  std::shared_ptr<GradientPipeline> path_;
  SchedulerOptions options_;
  struct Counted {
    explicit Counted(const std::shared_ptr<LRScheduler>& scheduler) : users(scheduler) {}
    std::int64_t samples = 0;  // of optimizer steps that were taken
    std::int64_t seen = 0;     // the rank's count at the last step; further samples belong to the next step
    std::int64_t updates = 0;  // of the optimizers, at the last call
    bool has_warned = false;
    detail::Users users;
  };
  std::shared_ptr<Counted> counted_ = std::make_shared<Counted>(nullptr);
  std::shared_ptr<const void> use_;
};

}  // namespace accel
