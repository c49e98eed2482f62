#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/core/value.hpp"

namespace torch::optim {
class Optimizer;
}

/// What all learning-rate schedules share. Their values are those of Python's torch.optim.lr_scheduler, bit for bit.
///
///     accel::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 100});
///     optimizer.step();
///     scheduler.step();
///
/// A schedule keeps a reference to its optimizer, which must live longer. Making one sets the rates of epoch 0. A
/// schedule of one's own defines `get_lr` and ends its constructor with `initial_step()`. Thread rule: the rank's
/// thread. Source: torch/optim/lr_scheduler.py.
namespace accel {

namespace optim {
class StateFields;
template <typename T>
struct Rule;
}  // namespace optim

/// An optimizer, and where a schedule of it starts. Any optimizer is one: its schedule starts from the rates that it
/// has.
///
///     accel::LinearLR warmup(optimizer);
///     accel::StepLR steps({optimizer, warmup.initial_lrs()}, /*step_size=*/30);
///
/// As in Python, a group of this library's optimizers keeps its `initial_lr`, so that a second schedule starts from the
/// rates before the first; LibTorch's own groups have no place for it, and `initial_lrs` says it. `last_epoch` is
/// Python's argument: the schedule goes on behind that epoch.
struct ScheduledOptimizer {
  ScheduledOptimizer(torch::optim::Optimizer& optimizer) : optimizer(&optimizer) {}
  ScheduledOptimizer(torch::optim::Optimizer& optimizer, std::vector<double> initial_lrs, int last_epoch = -1)
      : optimizer(&optimizer), initial_lrs(std::move(initial_lrs)), last_epoch(last_epoch) {}

  torch::optim::Optimizer* optimizer;
  std::optional<std::vector<double>> initial_lrs = {};
  int last_epoch = -1;
};

/// One number for all parameter groups, or a list with one for each.
class PerGroup {
 public:
  PerGroup(double value) : values_{value}, for_all_(true) {}
  PerGroup(std::initializer_list<double> values) : values_(values) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}
  /// Throws ArgumentError if the list is of another length. `name` is the argument's.
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
  /// Of a schedule that follows a metric (ReduceLROnPlateau, GreedyLR), or of CosineAnnealingWarmRestarts, to an epoch.
  /// Throws ArgumentError in the others.
  virtual void step(double metric);
  [[nodiscard]] int last_epoch() const { return last_epoch_; }
  /// Of each parameter group, as this schedule last set it.
  [[nodiscard]] const std::vector<double>& get_last_lr() const { return last_lr_; }
  /// The rates that this schedule started from.
  [[nodiscard]] const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// The rates that a later schedule of this optimizer is to start from: Python's `initial_lr` of each group.
  [[nodiscard]] const std::vector<double>& initial_lrs() const { return initial_lrs_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// What it has written into Python's parameter groups, by key, a value for each group: a state dict of an optimizer
  /// whose groups cannot keep it (LibTorch's own) lacks it.
  using GroupEntries = std::map<std::string, std::vector<double>>;
  [[nodiscard]] virtual GroupEntries group_entries() const { return group_entries_; }

  /// Python's `_step_count`: the calls of `step`, and one for the start.
  [[nodiscard]] int step_count() const { return step_count_.value_or(0); }
  /// Counts a step that is not carried out, as Accelerate does while gradients accumulate.
  void advance_step_count() {
    if (step_count_) ++*step_count_;
  }
  /// After how many steps the schedule ends; nothing if it does not.
  [[nodiscard]] virtual std::optional<int> total_steps() const { return std::nullopt; }

  /// Python's dict, key by key; what is code in it is null. The optimizer's rates belong to the optimizer's own state.
  [[nodiscard]] Value state_dict() const;
  /// Takes a `state_dict`, also Python's. Throws CheckpointError with all that is missing, of another type or
  /// impossible, and changes nothing then.
  void load_state_dict(const Value& state);

 protected:
  explicit LRScheduler(ScheduledOptimizer optimizer);
  /// The rates for `last_epoch()`; `current` are the groups' rates now.
  [[nodiscard]] virtual std::vector<double> get_lr(const std::vector<double>& current) const = 0;
  /// The same without the rates before, where Python has a formula: SequentialLR begins a schedule by it.
  [[nodiscard]] virtual std::vector<double> get_closed_form_lr(const std::vector<double>& current) const {
    return get_lr(current);
  }
  /// The momentum for `last_epoch()`, of each group; empty: is not touched.
  [[nodiscard]] virtual std::vector<double> get_momentum() const { return {}; }
  /// The entries of the state dict. Loading keeps what they refer to until all of them have been checked.
  virtual void state_fields(optim::StateFields& fields);
  void last_epoch_field(optim::StateFields& fields);
  void last_lr_field(optim::StateFields& fields);
  /// Called when a state has been loaded.
  virtual void loaded() {}

  /// What a list of the state must hold.
  [[nodiscard]] optim::Rule<std::vector<double>> one_per_group() const;

  /// To be called at the end of a derived constructor: sets the rates of epoch 0.
  void initial_step();
  /// The rates of epoch 0 are being set, by `initial_step`.
  [[nodiscard]] bool is_initial() const { return is_initial_; }
  /// Writes an entry of Python's into the parameter groups that can keep it, and so into the optimizer's state dict.
  void keep_in_groups(const char* name, const std::vector<double>& values);
  /// For a schedule that starts from other rates than those that it found.
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }
  void set_last_epoch(int epoch) { last_epoch_ = epoch; }
  /// The groups' rates now.
  [[nodiscard]] std::vector<double> current_lr() const;
  /// Goes to an epoch and sets its rates.
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
  std::optional<int> step_count_;  // once initial_step was called
  bool is_initial_ = false;
};

/// Makes a schedule for a place in a SequentialLR or ChainedScheduler.
using ScheduleFactory = std::function<std::unique_ptr<LRScheduler>(ScheduledOptimizer)>;

/// `schedule<LinearLR>(0.1, 1.0, 10)`: what the constructor takes behind the optimizer.
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
