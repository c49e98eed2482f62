#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

// ReduceLROnPlateau in the order of Python's statements: its counters are part of the state dict.
namespace accel {

ReduceLROnPlateau::ReduceLROnPlateau(ScheduledOptimizer optimizer, const Options& options)
    : LRScheduler(std::move(optimizer)),
      factor_(options.factor),
      min_lrs_(options.min_lr.of(this->optimizer(), "ReduceLROnPlateau: min_lr")),
      patience_(options.patience),
      cooldown_(options.cooldown),
      eps_(options.eps),
      mode_(options.mode),
      threshold_mode_(options.threshold_mode),
      threshold_(options.threshold) {
  check_argument(factor_ < 1.0, "ReduceLROnPlateau: factor: expected a number below 1, got {}", factor_);
  optim::check_comparison("ReduceLROnPlateau", mode_, threshold_mode_);
  // Python's default_min_lr: with a single minimum, groups that are added later get it, too.
  if (options.min_lr.for_all() && !min_lrs_.empty()) default_min_lr_ = min_lrs_.front();
  init_mode_worse();
  best_ = mode_worse_;
  // No initial_step: like Python's, this schedule changes no rate when it is created.
  set_last_epoch(0);
}

// Also called after loading, since a loaded mode may differ.
void ReduceLROnPlateau::init_mode_worse() { mode_worse_ = optim::worst_metric(mode_); }

void ReduceLROnPlateau::step() {
  throw ArgumentError("ReduceLROnPlateau: step: expected a metric, got none; call step(loss)");
}

void ReduceLROnPlateau::step(double metric) {
  // Groups that were added since get the single minimum, if there is one.
  if (default_min_lr_) min_lrs_.resize(optimizer().param_groups().size(), *default_min_lr_);
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  // During the cooldown, epochs do not count as bad.
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  update_lr(last_epoch() + 1);
  // After update_lr, whose get_lr reads the counter that is reset here.
  if (num_bad_epochs_ > patience_) {
    cooldown_counter_ = cooldown_;
    num_bad_epochs_ = 0;
  }
}

bool ReduceLROnPlateau::is_better(double metric) const {
  return optim::is_better_metric(metric, best_, mode_, threshold_mode_, threshold_);
}

std::vector<double> ReduceLROnPlateau::get_lr(const std::vector<double>& current) const {
  auto rates = current;
  if (num_bad_epochs_ <= patience_) return rates;
  check_state(rates.size() == min_lrs_.size(),
              "ReduceLROnPlateau: min_lr has {} values for {} parameter groups; add all groups before creating the "
              "schedule",
              min_lrs_.size(), rates.size());
  for (std::size_t group = 0; group < rates.size(); ++group) {
    const double reduced = std::max(rates[group] * factor_, min_lrs_[group]);
    // Changes of at most eps are skipped, as in Python.
    if (rates[group] - reduced > eps_) rates[group] = reduced;
  }
  return rates;
}

void ReduceLROnPlateau::state_fields(optim::StateFields& fields) {
  fields("factor", factor_);
  fields("default_min_lr", default_min_lr_);
  fields("min_lrs", min_lrs_, one_per_group());
  fields("patience", patience_);
  fields("cooldown", cooldown_);
  fields("eps", eps_);
  last_epoch_field(fields);
  last_lr_field(fields);
  // Not read, since it follows from `mode`: see loaded().
  fields.constant("mode_worse", mode_worse_);
  fields("mode", mode_, optim::one_of({"min", "max"}));
  fields("threshold", threshold_);
  fields("threshold_mode", threshold_mode_, optim::one_of({"rel", "abs"}));
  fields("best", best_);
  fields("cooldown_counter", cooldown_counter_);
  fields("num_bad_epochs", num_bad_epochs_);
}

}  // namespace accel
