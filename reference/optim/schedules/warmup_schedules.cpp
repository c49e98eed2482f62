#include "reference/optim/schedules/warmup_schedules.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/optim/schedules/schedule_arithmetic.hpp"

// The schedules of transformers/optimization.py as factors for LambdaLR. The expressions keep Python's order of
// operations, including its `max(1, ...)` guards, so that rates agree bit for bit.
namespace accel {
namespace {

using optim::kPi;

// The factor during warm-up: 0 at step 0, so the first optimizer step does not change the model.
double warmup_factor(int step, int num_warmup_steps) {
  return static_cast<double>(step) / std::max(1, num_warmup_steps);
}

// The fraction of the steps after the warm-up that has passed.
template <typename Options>
double progress_of(int step, const Options& options) {
  return static_cast<double>(step - options.num_warmup_steps) /
         std::max(1, options.num_training_steps - options.num_warmup_steps);
}

// Shared by the cosine schedules; with min_lr_rate = 0 the last operations change no bit.
double cosine_factor(double num_cycles, double progress, double min_lr_rate) {
  const double factor = 0.5 * (1.0 + std::cos(kPi * num_cycles * 2.0 * progress));
  return std::max(0.0, factor * (1 - min_lr_rate) + min_lr_rate);
}

// As in Python, the optimizer's default rate, even if its groups have others.
double default_lr(const ScheduledOptimizer& optimizer) { return optimizer.optimizer->defaults().get_lr(); }

template <typename Options>
double min_lr_rate_of(const ScheduledOptimizer& optimizer, const Options& options) {
  check_argument(!(options.min_lr && options.min_lr_rate), "min_lr and min_lr_rate: expected one of them, got both");
  check_argument(options.min_lr || options.min_lr_rate, "min_lr and min_lr_rate: expected one of them, got none");
  // LambdaLR needs a factor, so an absolute minimum is divided by the rate.
  return options.min_lr ? optim::divided(*options.min_lr, default_lr(optimizer), "min_lr") : *options.min_lr_rate;
}

void check_type(const char* name, const std::string& type) {
  check_argument(WsdOptions::kTypes.holds(type), "{}: expected {}, got '{}'", name, WsdOptions::kTypes.expected, type);
}

// The conditions for which Python raises ValueError, in the form in which an experiment file reports them.
template <typename Options>
std::vector<optim::OptionProblem> min_lr_problems(const Options& options) {
  if (options.min_lr.has_value() != options.min_lr_rate.has_value()) return {};
  return {{"min_lr", "expected one of min_lr and min_lr_rate"}};
}

// The factor captures its options by value: it outlives the caller's.
std::unique_ptr<LambdaLR> lambda(const ScheduledOptimizer& optimizer, EpochFactor factor) {
  return std::make_unique<LambdaLR>(optimizer, std::move(factor));
}

}  // namespace

std::vector<optim::OptionProblem> PolynomialWarmupOptions::problems_between() const {
  if (num_training_steps > num_warmup_steps) return {};
  return {{"num_training_steps", "expected more than num_warmup_steps"}};
}
std::vector<optim::OptionProblem> CosineMinLrWarmupOptions::problems_between() const { return min_lr_problems(*this); }
std::vector<optim::OptionProblem> CosineMinLrRateWarmupOptions::problems_between() const {
  return min_lr_problems(*this);
}
std::vector<optim::OptionProblem> WsdOptions::problems_between() const {
  if (num_training_steps || num_stable_steps) return {};
  return {{"num_training_steps", "missing; expected num_training_steps or num_stable_steps"}};
}

std::unique_ptr<LambdaLR> get_constant_schedule(const ScheduledOptimizer& optimizer) {
  return lambda(optimizer, [](int) { return 1.0; });
}

std::unique_ptr<LambdaLR> get_constant_schedule_with_warmup(const ScheduledOptimizer& optimizer, int num_warmup_steps) {
  return lambda(optimizer,
                [=](int step) { return step < num_warmup_steps ? warmup_factor(step, num_warmup_steps) : 1.0; });
}

std::unique_ptr<LambdaLR> get_linear_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                          LinearWarmupOptions options) {
  return lambda(optimizer, [=](int step) {
    if (step < options.num_warmup_steps) return warmup_factor(step, options.num_warmup_steps);
    return std::max(0.0, static_cast<double>(options.num_training_steps - step) /
                             std::max(1, options.num_training_steps - options.num_warmup_steps));
  });
}

std::unique_ptr<LambdaLR> get_cosine_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                          CosineWarmupOptions options) {
  return lambda(optimizer, [=](int step) {
    if (step < options.num_warmup_steps) return warmup_factor(step, options.num_warmup_steps);
    return cosine_factor(options.num_cycles, progress_of(step, options), 0.0);
  });
}

std::unique_ptr<LambdaLR> get_cosine_with_hard_restarts_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                             HardRestartsWarmupOptions options) {
  check_argument(options.num_cycles >= 0, "num_cycles: expected 0 or more, got {}", options.num_cycles);
  return lambda(optimizer, [=](int step) {
    if (step < options.num_warmup_steps) return warmup_factor(step, options.num_warmup_steps);
    const double progress = progress_of(step, options);
    // Before the modulo, which would start another cycle at the last step.
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * std::fmod(options.num_cycles * progress, 1.0))));
  });
}

std::unique_ptr<LambdaLR> get_polynomial_decay_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                    PolynomialWarmupOptions options) {
  const double lr_init = default_lr(optimizer);
  // Checked here and not in problems_between, because it depends on the optimizer.
  check_argument(lr_init > options.lr_end, "lr_end: expected a number below the optimizer's rate of {}, got {}",
                 lr_init, options.lr_end);
  return lambda(optimizer, [=](int step) {
    if (step < options.num_warmup_steps) return warmup_factor(step, options.num_warmup_steps);
    if (step > options.num_training_steps) return optim::divided(options.lr_end, lr_init, "lr_end");
    // The factor is relative to lr_init, because LambdaLR multiplies by the initial rate.
    const int decay_steps = options.num_training_steps - options.num_warmup_steps;
    const double left = 1 - optim::divided(step - options.num_warmup_steps, decay_steps,
                                           "num_training_steps: as many as num_warmup_steps");
    const double decay = (lr_init - options.lr_end) * optim::power(left, options.power, "power") + options.lr_end;
    return optim::divided(decay, lr_init, "lr_end");
  });
}

std::unique_ptr<LambdaLR> get_inverse_sqrt_schedule(const ScheduledOptimizer& optimizer, int num_warmup_steps,
                                                    std::optional<int> timescale) {
  const int scale = timescale.value_or(num_warmup_steps != 0 ? num_warmup_steps : 10000);
  check_argument(scale >= 1, "timescale: expected 1 or more, got {}", scale);
  return lambda(optimizer, [=](int step) {
    if (step < num_warmup_steps) return warmup_factor(step, num_warmup_steps);
    // Shifted so that the factor is 1 at the end of a warm-up of num_warmup_steps. 64 bits avoid overflow of the sum.
    return 1.0 / std::sqrt(static_cast<double>(std::int64_t{step} + (std::int64_t{scale} - num_warmup_steps)) / scale);
  });
}

std::unique_ptr<LambdaLR> get_cosine_with_min_lr_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                      CosineMinLrWarmupOptions options) {
  return lambda(optimizer, [options, min_lr_rate = min_lr_rate_of(optimizer, options)](int step) {
    if (step < options.num_warmup_steps) return warmup_factor(step, options.num_warmup_steps);
    return cosine_factor(options.num_cycles, progress_of(step, options), min_lr_rate);
  });
}

std::unique_ptr<LambdaLR> get_cosine_with_min_lr_schedule_with_warmup_lr_rate(const ScheduledOptimizer& optimizer,
                                                                              CosineMinLrRateWarmupOptions options) {
  return lambda(optimizer, [options, min_lr_rate = min_lr_rate_of(optimizer, options)](int k) {
    // Unlike the other schedules, this one counts from step 1, so the warm-up does not start at 0.
    const double step = k, warmup = options.num_warmup_steps, training = options.num_training_steps;
    if (step < warmup) {
      if (!options.warmup_lr_rate) return (step + 1.0) / std::max(1.0, warmup);
      return *options.warmup_lr_rate + (1.0 - *options.warmup_lr_rate) * step / std::max(1.0, warmup - 1);
    }
    return cosine_factor(options.num_cycles, (step - warmup + 1.0) / std::max(1.0, training - warmup), min_lr_rate);
  });
}

std::unique_ptr<LambdaLR> get_wsd_schedule(const ScheduledOptimizer& optimizer, WsdOptions options) {
  check_argument(options.num_training_steps || options.num_stable_steps,
                 "num_training_steps and num_stable_steps: expected one of them, got none");
  check_type("warmup_type", options.warmup_type);
  check_type("decay_type", options.decay_type);
  // Without num_stable_steps, the stable phase is what warm-up and decay leave of the training steps.
  const int warmup = options.num_warmup_steps;
  const int stable = options.num_stable_steps ? *options.num_stable_steps
                                              : *options.num_training_steps - warmup - options.num_decay_steps;
  return lambda(optimizer, [=](int step) {
    // Maps a factor from [0, 1] to [min_lr_ratio, 1].
    const auto at_least_min = [&](double factor) {
      return std::max(0.0, factor * (1.0 - options.min_lr_ratio) + options.min_lr_ratio);
    };
    if (step < warmup) {
      const double progress = warmup_factor(step, warmup);
      if (options.warmup_type == "linear") return at_least_min(progress);
      return at_least_min(options.warmup_type == "cosine" ? 0.5 * (1.0 - std::cos(kPi * progress))
                                                          : 1.0 - std::sqrt(1.0 - progress));
    }
    if (step < warmup + stable) return 1.0;
    if (step >= warmup + stable + options.num_decay_steps) return options.min_lr_ratio;
    const double progress = static_cast<double>(step - warmup - stable) / std::max(1, options.num_decay_steps);
    if (options.decay_type == "linear") return at_least_min(1.0 - progress);
    return at_least_min(options.decay_type == "cosine"
                            ? 0.5 * (1.0 + std::cos(kPi * options.num_cycles * 2.0 * progress))
                            : 1.0 - std::sqrt(progress));
  });
}

std::unique_ptr<ReduceLROnPlateau> get_reduce_on_plateau_schedule(const ScheduledOptimizer& optimizer,
                                                                  const ReduceLROnPlateauOptions& options) {
  return std::make_unique<ReduceLROnPlateau>(optimizer, options);
}

}  // namespace accel
