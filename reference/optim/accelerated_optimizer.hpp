#pragma once

#include <memory>
#include <vector>

#include "reference/optim/lr_scheduler.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {

/// A prepared optimizer: `step` and `zero_grad` act only when gradients were synchronised.
///
/// A handle: copies share one state, and refer to the user's optimizer, which must live longer.
/// Thread rule: the rank's thread. Source: accelerate/optimizer.py, AcceleratedOptimizer.
class AcceleratedOptimizer {
 public:
  AcceleratedOptimizer(torch::optim::Optimizer& optimizer, RankContext& context) : optimizer_(&optimizer), context_(&context) {}

  void step();
  /// Sets gradients to none, as Python's default does.
  void zero_grad(bool set_to_none = true);
  /// The last `step` was not carried out (a loss scaler found infinities). Always false without one.
  [[nodiscard]] bool step_was_skipped() const { return false; }
  /// Learning rate of a parameter group.
  [[nodiscard]] double lr(std::size_t group = 0) const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
  RankContext* context_;
};

struct SchedulerOptions {
  bool step_with_optimizer = true;
  bool split_batches = false;
};

/// A prepared schedule: it steps when the optimizer does, and once for each rank unless batches are split, since a step
/// over N ranks reads N batches.
///
/// A handle on the user's schedule, which must live longer. Thread rule: the rank's thread.
/// Source: accelerate/scheduler.py, AcceleratedScheduler.
class AcceleratedScheduler {
 public:
  AcceleratedScheduler(LRScheduler& scheduler, RankContext& context, SchedulerOptions options)
      : scheduler_(&scheduler), context_(&context), options_(options) {}

  void step();
  [[nodiscard]] std::vector<double> get_last_lr() const { return scheduler_->get_last_lr(); }
  [[nodiscard]] LRScheduler& scheduler() const { return *scheduler_; }

 private:
  LRScheduler* scheduler_;
  RankContext* context_;
  SchedulerOptions options_;
};

}  // namespace accel
