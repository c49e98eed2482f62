#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reference/core/borrowed.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/prepared/gradient_path.hpp"
#include "reference/state/rank_context.hpp"

namespace torch::optim {
class OptimizerParamGroup;
}

namespace accel {

/// A prepared optimizer: `step` and `zero_grad` act only when gradients were synchronised, and `step` not on gradients
/// that overflowed under fp16 or that the gradient guard refuses.
///
///     auto optimizer = accelerator.prepare(sgd);
///     optimizer.step();             // optimizer->step() is the same call
///     optimizer.set_lr(0.01);
///
/// A handle: copies share one state. The user's optimizer must live longer, unless prepare was given a shared_ptr or a
/// temporary, which the handle keeps. Thread rule: the rank's thread. Source: accelerate/optimizer.py,
/// AcceleratedOptimizer.
class AcceleratedOptimizer {
 public:
  /// `steps_in_backward`: DeepSpeed's rule, by which `step` and `zero_grad` do nothing, since backward has done both.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, RankContext& context,
                       std::shared_ptr<GradientPath> path, bool steps_in_backward = false)
      : optimizer_(std::move(optimizer)),
        context_(&context),
        path_(std::move(path)),
        steps_in_backward_(steps_in_backward) {}
  /// Of an optimizer that lives longer.
  AcceleratedOptimizer(torch::optim::Optimizer& optimizer, RankContext& context, std::shared_ptr<GradientPath> path)
      : AcceleratedOptimizer(detail::borrowed(optimizer), context, std::move(path)) {}
  /// A handle on nothing, which release_memory leaves.
  explicit AcceleratedOptimizer(std::nullptr_t) {}

  /// `closure` as LibTorch's, which LBFGS needs: it zeroes gradients, runs the model and Accelerator::backward, and
  /// returns the loss.
  void step(const GradientPath::LossClosure& closure = {});
  /// Sets gradients to none, as Python's default does.
  void zero_grad(bool set_to_none = true);
  /// The last `step` that gradients were synchronised for was not carried out: parameters are as they were.
  [[nodiscard]] bool step_was_skipped() const { return status_->was_skipped; }
  /// What a checkpoint says of that.
  void set_step_was_skipped(bool was_skipped) { status_->was_skipped = was_skipped; }
  /// Learning rate of a parameter group. Throws ArgumentError if there is no such group.
  [[nodiscard]] double lr(std::size_t group = 0) const;
  /// Sets it in all groups, or in one. A schedule sets it anew at its next step.
  void set_lr(double lr);
  void set_lr(double lr, std::size_t group);
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] bool steps_any_of(const std::vector<at::Tensor>& parameters) const;
  AcceleratedOptimizer* operator->() { return this; }
  const AcceleratedOptimizer* operator->() const { return this; }

 private:
  friend class TrainingStep;
  void take_step();
  void update(const GradientPath::LossClosure& closure = {});
  void clear_gradients(bool set_to_none);
  [[nodiscard]] bool was_called() const { return status_->was_called; }
  // To be asked at each backward: whether the parameters have changed since the last one although nobody has ever
  // called `step`. Once.
  [[nodiscard]] bool was_stepped_elsewhere();

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  RankContext* context_ = nullptr;
  std::shared_ptr<GradientPath> path_;
  bool steps_in_backward_ = false;
  struct Status {
    bool was_skipped = false, was_called = false;
    std::optional<double> norm = {};  // of the first parameter, at the last backward; not once `step` was called
  };
  std::shared_ptr<Status> status_ = std::make_shared<Status>();
};

struct SchedulerOptions {
  bool step_with_optimizer = true;
  bool split_batches = false;
  /// The schedule's unit is this many samples, duplicates not counted, so that rates after as many samples are the same
  /// for every number of ranks, batch size and accumulation; unset: Accelerate's rule, a step for each rank.
  std::optional<std::int64_t> samples_per_step = {};
  bool steps_in_backward = false;  ///< DeepSpeed's rule, of the schedule in its file: `step` does nothing
};

/// A prepared schedule: it steps when its optimizer does, and once for each rank unless batches are split, since a step
/// over N ranks reads N batches. A schedule with `total_steps` is never stepped past them.
///
/// A handle on the user's schedule, which must live longer, unless prepare was given a shared_ptr of it. Thread rule:
/// the rank's thread. Source: accelerate/scheduler.py, AcceleratedScheduler.
class AcceleratedScheduler {
 public:
  /// Steps are skipped when one of `optimizers` skipped its own.
  AcceleratedScheduler(std::shared_ptr<LRScheduler> scheduler, std::vector<AcceleratedOptimizer> optimizers,
                       RankContext& context, std::shared_ptr<GradientPath> path, SchedulerOptions options);
  /// Of a schedule that lives longer.
  AcceleratedScheduler(LRScheduler& scheduler, std::vector<AcceleratedOptimizer> optimizers, RankContext& context,
                       std::shared_ptr<GradientPath> path, SchedulerOptions options)
      : AcceleratedScheduler(detail::borrowed(scheduler), std::move(optimizers), context, std::move(path), options) {}
  /// A handle on nothing, which release_memory leaves.
  explicit AcceleratedScheduler(std::nullptr_t) {}

  /// Behind the optimizer's step.
  void step() {
    advance([this] { scheduler_->step(); });
  }
  /// With the metric that ReduceLROnPlateau or GreedyLR follows, the same on every rank (`gather` it first): rates
  /// differ otherwise. Or with the epoch of CosineAnnealingWarmRestarts.
  void step(double metric) {
    advance([this, metric] { scheduler_->step(metric); });
  }
  [[nodiscard]] std::vector<double> get_last_lr() const { return scheduler_->get_last_lr(); }
  [[nodiscard]] LRScheduler& scheduler() const { return *scheduler_; }
  AcceleratedScheduler* operator->() { return this; }
  const AcceleratedScheduler* operator->() const { return this; }
  /// The schedule's own, and the samples that it has counted.
  [[nodiscard]] Value state_dict() const;
  void load_state_dict(const Value& state);

 private:
  friend class TrainingStep;
  // Behind the optimizer's step, where the schedule steps in backward.
  void take_step();
  void advance(const std::function<void()>& step);
  bool is_held_back() const;
  bool has_ended() const;
  std::int64_t samples_of_window();

  std::shared_ptr<LRScheduler> scheduler_;
  std::vector<AcceleratedOptimizer> optimizers_;
  RankContext* context_ = nullptr;
  std::shared_ptr<GradientPath> path_;
  SchedulerOptions options_;
  struct Counted {
    std::int64_t samples = 0;  // of steps that were taken
    std::int64_t seen = 0;     // of the rank's count; what is beyond is of the next step
  };
  std::shared_ptr<Counted> counted_ = std::make_shared<Counted>();
};

}  // namespace accel
