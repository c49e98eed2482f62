#pragma once

#include <memory>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"

/// Several schedules of one optimizer, one after another or all at once.
///
///     accel::SequentialLR scheduler(optimizer, {accel::schedule<accel::LinearLR>(0.1, 1.0, 10),
///                                               accel::schedule<accel::CosineAnnealingLR>(90)}, /*milestones=*/{10});
///     accel::ChainedScheduler both(optimizer, {accel::schedule<accel::ConstantLR>(0.1),
///                                              accel::schedule<accel::ExponentialLR>(0.9)});
///
/// The schedules are constructed here, in order, as in a Python program: each sets the rates of its epoch 0 on top of
/// those of the previous one, and all start from the first one's initial rates. Thread rule: the rank's thread. Source:
/// torch/optim/lr_scheduler.py, SequentialLR and ChainedScheduler.
namespace accel {

/// The common base of both.
class CombinedSchedule : public LRScheduler {
 public:
  [[nodiscard]] const std::vector<std::unique_ptr<LRScheduler>>& schedulers() const { return schedulers_; }
  [[nodiscard]] GroupEntries group_entries() const override;

 protected:
  CombinedSchedule(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers);
  void state_fields(optim::StateFields& fields) override;
  void update_last_lr();
  void initial_step_of(std::size_t index);
  void restart(LRScheduler& scheduler);

 private:
  void check(const LRScheduler* scheduler) const;
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  void undo_initial_step() override;
  void read_schedulers(optim::StateFields& fields);

  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
};

/// Switches to the next schedule, which starts at its epoch 0, at each milestone. With a milestone at 0 the schedule
/// after it starts; torch would start at the rate of the first one.
class SequentialLR : public CombinedSchedule {
 public:
  /// `milestones`: one fewer than schedules, in ascending order.
  SequentialLR(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers,
               std::vector<int> milestones);
  void step() override;

 private:
  void state_fields(optim::StateFields& fields) override;
  [[nodiscard]] std::vector<int>::const_iterator next_milestone() const;

  std::vector<int> milestones_;
};

/// Steps all of its schedules; their factors multiply.
class ChainedScheduler : public CombinedSchedule {
 public:
  ChainedScheduler(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers);
  void step() override;
};

}  // namespace accel
