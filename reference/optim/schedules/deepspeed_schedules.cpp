#include "reference/optim/schedules/deepspeed_schedules.hpp"

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedule_arithmetic.hpp"

// DeepSpeed counts iterations from -1: its initial state is before iteration 0, while a Python schedule starts at epoch
// 0. Hence `last_epoch() - 1` below.
namespace accel {
namespace {

template <typename Options>
Options checked(const char* schedule, Options options) {
  check_argument(options.warmup_num_steps >= 0, "{}: warmup_num_steps: expected 0 or more, got {}", schedule,
                 options.warmup_num_steps);
  check_argument(options.warmup_type == "log" || options.warmup_type == "linear",
                 "{}: warmup_type: expected log or linear, got '{}'", schedule, options.warmup_type);
  options.warmup_num_steps = std::max(2, options.warmup_num_steps);  // as DeepSpeed: log(1) would divide by 0
  return options;
}

// The progress of the warm-up, from 0 to 1, with DeepSpeed's logarithm of `iteration + 1`.
template <typename Options>
double warmed_up(int iteration, const Options& options) {
  if (options.warmup_type == "linear") return static_cast<double>(iteration) / options.warmup_num_steps;
  return 1.0 / std::log(options.warmup_num_steps) * std::log(iteration + 1);
}

std::vector<double> between(double lowest, const std::vector<double>& highest, double part) {
  std::vector<double> rates;
  for (const double high : highest) rates.push_back(lowest + (high - lowest) * part);
  return rates;
}

// WarmupCosineLR scales each group's own rate, while the other two set absolute rates.
std::vector<double> scaled(std::vector<double> rates, double ratio) {
  for (auto& rate : rates) rate *= ratio;
  return rates;
}

}  // namespace

WarmupLR::WarmupLR(ScheduledOptimizer optimizer, Options options)
    : LRScheduler(std::move(optimizer)), options_(checked("WarmupLR", std::move(options))) {
  initial_step();
}

std::vector<double> WarmupLR::get_lr(const std::vector<double>&) const {
  const int iteration = last_epoch() - 1;
  // Without warmup_max_lr, each group's own rate is its maximum.
  const auto highest =
      options_.warmup_max_lr ? std::vector<double>(base_lrs().size(), *options_.warmup_max_lr) : base_lrs();
  if (iteration < 0) return std::vector<double>(base_lrs().size(), options_.warmup_min_lr);
  // After the warm-up the rate stays at its maximum.
  return between(options_.warmup_min_lr, highest,
                 iteration < options_.warmup_num_steps ? warmed_up(iteration, options_) : 1.0);
}

WarmupDecayLR::WarmupDecayLR(ScheduledOptimizer optimizer, Options options)
    : LRScheduler(std::move(optimizer)), options_(checked("WarmupDecayLR", std::move(options))) {
  initial_step();
}

std::vector<double> WarmupDecayLR::get_lr(const std::vector<double>&) const {
  const int iteration = last_epoch() - 1;
  const std::vector<double> highest(base_lrs().size(), options_.warmup_max_lr);
  if (iteration < 0) return std::vector<double>(base_lrs().size(), options_.warmup_min_lr);
  if (iteration < options_.warmup_num_steps)
    return between(options_.warmup_min_lr, highest, warmed_up(iteration, options_));
  // Negative after total_num_steps, hence the maximum with 0.
  const double left = options_.total_num_steps - iteration;
  return between(
      options_.warmup_min_lr, highest,
      std::max(0.0, left / std::max(1.0, static_cast<double>(options_.total_num_steps - options_.warmup_num_steps))));
}

WarmupCosineLR::WarmupCosineLR(ScheduledOptimizer optimizer, Options options)
    : LRScheduler(std::move(optimizer)), options_(checked("WarmupCosineLR", std::move(options))) {
  initial_step();
}

std::vector<double> WarmupCosineLR::get_lr(const std::vector<double>&) const {
  const int iteration = last_epoch() - 1;
  if (iteration < 0) return std::vector<double>(base_lrs().size(), 0.0);
  if (iteration < options_.warmup_num_steps)
    return scaled(base_lrs(),
                  options_.warmup_min_ratio + warmed_up(iteration, options_) * (1. - options_.warmup_min_ratio));
  // The + 1 is DeepSpeed's: the cosine starts one step after its maximum.
  const double last = iteration - options_.warmup_num_steps + 1;
  const double progress = std::min(1.0, last / std::max(1, options_.total_num_steps - options_.warmup_num_steps));
  const double ratio = (1 + std::cos(optim::kPi * progress)) / 2;
  return scaled(base_lrs(), std::max(0.0, options_.cos_min_ratio + (1. - options_.cos_min_ratio) * ratio));
}

}  // namespace accel
