#pragma once

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

/// What schedules are made of. Thread rule: values; the optimizer is borrowed.
namespace accel {

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

}  // namespace accel
