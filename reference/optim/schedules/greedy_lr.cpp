#include "reference/optim/schedules/greedy_lr.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

// GreedyLR, statement by statement as in Transformers, including the order of its checks: the counters are part of the
// state dict, and must have Python's values after every step.
namespace accel {

GreedyLR::GreedyLR(ScheduledOptimizer optimizer, const Options& options)
    : LRScheduler(std::move(optimizer)),
      mode_(options.mode),
      factor_(options.factor),
      patience_(options.patience),
      threshold_(options.threshold),
      threshold_mode_(options.threshold_mode),
      cooldown_(options.cooldown),
      warmup_(options.warmup),
      min_lrs_(options.min_lr.of(this->optimizer(), "GreedyLR: min_lr")),
      max_lrs_(options.max_lr.of(this->optimizer(), "GreedyLR: max_lr")),
      init_lrs_(current_lr()),
      eps_(options.eps),
      smooth_(options.smooth),
      window_size_(options.window_size),
      reset_start_original_(options.reset_start) {
  check_argument(factor_ > 0.0 && factor_ < 1.0, "GreedyLR: factor: expected a number between 0 and 1, got {}",
                 factor_);
  optim::check_comparison("GreedyLR", mode_, threshold_mode_);
  check_argument(window_size_ >= 1, "GreedyLR: window_size: expected 1 or more, got {}", window_size_);
  begin();
  set_last_epoch(0);
}

// Also called when the schedule restarts after reset_start reductions.
void GreedyLR::begin() {
  best_ = optim::worst_metric(mode_);
  num_bad_epochs_ = num_good_epochs_ = cooldown_counter_ = warmup_counter_ = 0;
  reset_start_ = reset_start_original_;
  recent_.clear();
  sum_of_recent_ = 0.0;
}

// A loop that steps every schedule alike would otherwise silently leave the rate constant.
void GreedyLR::step() { throw ArgumentError("GreedyLR: step: expected a metric, got none; call step(loss)"); }

void GreedyLR::step(double metric) {
  const auto current = smooth_ ? smoothed(metric) : metric;
  next_ = current_lr();
  check_state(next_.size() == min_lrs_.size() && next_.size() == max_lrs_.size(),
              "GreedyLR: min_lr and max_lr have {} and {} values for {} parameter groups; add all groups before "
              "creating the schedule",
              min_lrs_.size(), max_lrs_.size(), next_.size());
  // While one of the counters runs, metrics neither change rates nor count as good or bad.
  if (cooldown_counter_ > 0 || warmup_counter_ > 0) {
    --(cooldown_counter_ > 0 ? cooldown_counter_ : warmup_counter_);
    num_bad_epochs_ = num_good_epochs_ = 0;
  } else {
    const bool improves = is_better(current);
    if (improves) best_ = current;
    num_good_epochs_ = improves ? num_good_epochs_ + 1 : 0;
    num_bad_epochs_ = improves ? 0 : num_bad_epochs_ + 1;
    if (num_good_epochs_ > patience_) {
      next_ = raised(std::move(next_));
      warmup_counter_ = warmup_;
      num_good_epochs_ = 0;
    } else if (num_bad_epochs_ > patience_) {
      next_ = reduced(std::move(next_));
      cooldown_counter_ = cooldown_;
      num_bad_epochs_ = 0;
    }
  }
  update_lr(last_epoch() + 1);
}

// Keeps a running sum, as Python does: summing the window again would round differently.
double GreedyLR::smoothed(double metric) {
  recent_.push_back(metric);
  sum_of_recent_ += metric;
  if (recent_.size() > static_cast<std::size_t>(window_size_)) {
    sum_of_recent_ -= recent_.front();
    recent_.erase(recent_.begin());
  }
  return sum_of_recent_ / static_cast<double>(recent_.size());
}

bool GreedyLR::is_better(double metric) const {
  return optim::is_better_metric(metric, best_, mode_, threshold_mode_, threshold_);
}

// Divides by the factor that reductions multiply by. An increase also resets the countdown to a restart.
std::vector<double> GreedyLR::raised(std::vector<double> rates) {
  for (std::size_t group = 0; group < rates.size(); ++group) {
    const double rate = std::min(rates[group] / factor_, max_lrs_[group]);
    // Changes of at most eps are skipped, as in Python.
    if (rate - rates[group] > eps_) rates[group] = rate;
  }
  reset_start_ = reset_start_original_;
  return rates;
}

std::vector<double> GreedyLR::reduced(std::vector<double> rates) {
  // Whether every rate has reached its minimum; after reset_start such reductions the schedule restarts with its
  // initial rates.
  bool all_at_least = true;
  for (std::size_t group = 0; group < rates.size(); ++group) {
    const double rate = std::max(rates[group] * factor_, min_lrs_[group]);
    if (rates[group] - rate > eps_) rates[group] = rate;
    if (rates[group] > min_lrs_[group]) all_at_least = false;
  }
  if (!all_at_least || --reset_start_ > 0) return rates;
  begin();
  return init_lrs_;
}

// Computed in step(metric), since get_lr does not receive the metric.
std::vector<double> GreedyLR::get_lr(const std::vector<double>& /*current*/) const { return next_; }

void GreedyLR::state_fields(optim::StateFields& fields) {
  fields("factor", factor_);
  fields("min_lrs", min_lrs_, one_per_group());
  fields("max_lrs", max_lrs_, one_per_group());
  fields("patience", patience_);
  fields.constant("verbose", false);
  fields("cooldown", cooldown_);
  fields("warmup", warmup_);
  fields("cooldown_counter", cooldown_counter_);
  fields("warmup_counter", warmup_counter_);
  fields("mode", mode_, optim::one_of({"min", "max"}));
  fields("threshold", threshold_);
  fields("threshold_mode", threshold_mode_, optim::one_of({"rel", "abs"}));
  fields("best", best_);
  fields("num_bad_epochs", num_bad_epochs_);
  fields("num_good_epochs", num_good_epochs_);
  fields("eps", eps_);
  last_epoch_field(fields);
  // Not changed by loading, because it decides whether the state contains the window below.
  fields("smooth", smooth_, optim::unchanged_since_construction(smooth_));
  fields("window_size", window_size_, optim::at_least(1));
  fields("reset_start", reset_start_);
  fields("reset_start_original", reset_start_original_);
  last_lr_field(fields);
  fields("_init_lrs", init_lrs_, one_per_group());
  if (!smooth_) return;
  // The state of Python's StreamingAverage, which is a nested dict.
  const auto average = [this](optim::StateFields& part) {
    part("window_size", window_size_, optim::at_least(1));
    part("values", recent_);
    part("sum", sum_of_recent_);
  };
  if (fields.writes()) {
    Value::Dict dict;
    optim::StateFields part(dict);
    average(part);
    fields.write("_streaming_avg", std::move(dict));
  } else if (const auto* dict = fields.find("_streaming_avg")) {
    fields.part(*dict, "_streaming_avg.", average);
  }
}

// Python's load_state_dict sets the optimizer's rates as well; other schedules leave that to the optimizer's state.
void GreedyLR::loaded() {
  auto& groups = optimizer().param_groups();
  for (std::size_t group = 0; group < groups.size() && group < get_last_lr().size(); ++group)
    groups[group].options().set_lr(get_last_lr()[group]);
}

}  // namespace accel
