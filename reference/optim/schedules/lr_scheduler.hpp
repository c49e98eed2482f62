#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/tree/value.hpp"

namespace torch::optim {
class Optimizer;
}

/// The base of all learning-rate schedules. Their values are those of Python's torch.optim.lr_scheduler, bit for bit.
///
///     accel::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 100});
///     optimizer.step();
///     scheduler.step();
///
/// A schedule refers to its optimizer, which must outlive it. Constructing a schedule sets the rates of epoch 0. A
/// custom schedule defines `get_lr` and ends its constructor with `initial_step()`. Thread rule: the rank's thread.
/// Source: torch/optim/lr_scheduler.py.
namespace accel {

namespace optim {
class StateFields;
template <typename T>
struct Rule;
}  // namespace optim

/// An optimizer, and where its schedule starts. Any optimizer converts to one, which starts from the optimizer's
/// current rates.
///
///     accel::LinearLR warmup(optimizer);
///     accel::StepLR steps({optimizer, warmup.initial_lrs()}, /*step_size=*/30);
///
/// As in Python, a group of this library's optimizers stores its `initial_lr`, so that a second schedule starts from
/// the rates before the first. LibTorch's own groups cannot store it; pass `initial_lrs` instead. `last_epoch` is
/// Python's argument: the schedule resumes after that epoch.
struct ScheduledOptimizer {
  ScheduledOptimizer(torch::optim::Optimizer& optimizer) : optimizer(&optimizer) {}
  ScheduledOptimizer(torch::optim::Optimizer& optimizer, std::vector<double> initial_lrs, int last_epoch = -1)
      : optimizer(&optimizer), initial_lrs(std::move(initial_lrs)), last_epoch(last_epoch) {}

  torch::optim::Optimizer* optimizer;
  std::optional<std::vector<double>> initial_lrs = {};
  int last_epoch = -1;
};

/// One number for all parameter groups, or a list with one number per group.
class PerGroup {
 public:
  PerGroup(double value) : values_{value}, for_all_(true) {}
  PerGroup(std::initializer_list<double> values) : values_(values) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}
  /// One value per group. Throws ArgumentError if the list has another length; `name` is the argument's name.
  [[nodiscard]] std::vector<double> of(const torch::optim::Optimizer& optimizer, const char* name) const;
  [[nodiscard]] bool for_all() const { return for_all_; }

 private:
  std::vector<double> values_;
  bool for_all_ = false;
};

class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  virtual void step();
  /// For schedules that follow a metric (ReduceLROnPlateau, GreedyLR): steps with this value. For
  /// CosineAnnealingWarmRestarts: goes to this epoch. Other schedules throw ArgumentError.
  virtual void step(double metric);
  [[nodiscard]] int last_epoch() const { return last_epoch_; }
  /// The rate of each parameter group, as last set by this schedule.
  [[nodiscard]] const std::vector<double>& get_last_lr() const { return last_lr_; }
  /// The rates from which this schedule started.
  [[nodiscard]] const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// The rates from which a later schedule of this optimizer should start: Python's `initial_lr` of each group.
  [[nodiscard]] const std::vector<double>& initial_lrs() const { return initial_lrs_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// The entries that the schedule has written into Python's parameter groups, by key, with one value per group. They
  /// are missing in the state dict of an optimizer whose groups cannot store them (LibTorch's own).
  using GroupEntries = std::map<std::string, std::vector<double>>;
  [[nodiscard]] virtual GroupEntries group_entries() const { return group_entries_; }

  /// Python's `_step_count`: the number of calls of `step`, plus one for the initial step.
  [[nodiscard]] int step_count() const { return step_count_.value_or(0); }
  /// Counts a step without performing it, as Accelerate does during gradient accumulation.
  void advance_step_count() {
    if (step_count_) ++*step_count_;
  }
  /// The number of steps after which the schedule ends; nullopt if it does not end.
  [[nodiscard]] virtual std::optional<int> total_steps() const { return std::nullopt; }

  /// Python's dict, key by key; functions are null. The optimizer's rates belong to the optimizer's own state.
  [[nodiscard]] Value state_dict() const;
  /// Loads a `state_dict`, including Python's. Throws CheckpointError, which lists all entries that are missing, of
  /// another type or invalid, and leaves the schedule unchanged then.
  void load_state_dict(const Value& state);

 protected:
  explicit LRScheduler(ScheduledOptimizer optimizer);
  /// The rates for `last_epoch()`; `current` are the groups' current rates.
  [[nodiscard]] virtual std::vector<double> get_lr(const std::vector<double>& current) const = 0;
  /// The same independently of the previous rates, where Python has a formula. SequentialLR uses it to start a
  /// schedule. See Note [Recursive and closed form].
  [[nodiscard]] virtual std::vector<double> get_closed_form_lr(const std::vector<double>& current) const {
    return get_lr(current);
  }
  /// The momentum of each group for `last_epoch()`; empty if the schedule does not change it.
  [[nodiscard]] virtual std::vector<double> get_momentum() const { return {}; }
  /// Lists the entries of the state dict. Loading assigns them only after all have been checked.
  virtual void state_fields(optim::StateFields& fields);
  void last_epoch_field(optim::StateFields& fields);
  void last_lr_field(optim::StateFields& fields);
  /// Called after a state has been loaded.
  virtual void loaded() {}

  /// The rule for lists in the state with one value per group.
  [[nodiscard]] optim::Rule<std::vector<double>> one_per_group() const;

  /// Sets the rates of epoch 0. Must be called at the end of a derived constructor.
  void initial_step();
  /// Whether `initial_step` is currently setting the rates of epoch 0.
  [[nodiscard]] bool is_initial() const { return is_initial_; }
  /// Writes one of Python's entries into the parameter groups that can store it, and so into the optimizer's state
  /// dict.
  void keep_in_groups(const char* name, const std::vector<double>& values);
  /// For a schedule that starts from other rates than the optimizer's.
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }
  void set_last_epoch(int epoch) { last_epoch_ = epoch; }
  /// The groups' current rates.
  [[nodiscard]] std::vector<double> current_lr() const;
  /// Sets `last_epoch` and the rates of that epoch.
  void update_lr(int epoch);

 private:
  friend class CombinedSchedule;
  friend class SequentialLR;
  void restart();
  void set_rates(const std::vector<double>& rates);
  virtual void undo_initial_step() { --last_epoch_; }

  torch::optim::Optimizer* optimizer_;
  GroupEntries group_entries_;
  std::vector<double> base_lrs_, initial_lrs_, last_lr_;
  int last_epoch_;
  std::optional<int> step_count_;  // set by initial_step
  bool is_initial_ = false;
};

/// Creates a schedule that is part of a SequentialLR or ChainedScheduler.
using ScheduleFactory = std::function<std::unique_ptr<LRScheduler>(ScheduledOptimizer)>;

/// `schedule<LinearLR>(0.1, 1.0, 10)`: the constructor's arguments after the optimizer.
template <typename Schedule, typename... Arguments>
ScheduleFactory schedule(Arguments... arguments) {
  return [arguments...](ScheduledOptimizer optimizer) {
    return std::make_unique<Schedule>(std::move(optimizer), arguments...);
  };
}
/// `schedule<OneCycleLR>({.max_lr = 0.1, .total_steps = 100})`.
template <typename Schedule>
ScheduleFactory schedule(typename Schedule::Options options) {
  return [options](ScheduledOptimizer optimizer) { return std::make_unique<Schedule>(std::move(optimizer), options); };
}

}  // namespace accel
