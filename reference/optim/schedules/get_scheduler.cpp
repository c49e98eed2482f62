#include "reference/optim/schedules/get_scheduler.hpp"

#include <fmt/ranges.h>

#include <map>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/greedy_lr.hpp"
#include "reference/optim/schedules/schedule_state.hpp"
#include "reference/optim/schedules/warmup_schedules.hpp"

namespace accel {
namespace {

// The arguments of one call, by name; collects what is wrong with them.
class Arguments {
 public:
  Arguments(const std::string& name, const GetSchedulerOptions& options) : name_(name), options_(options) {}

  int num_warmup_steps() { return steps("num_warmup_steps", options_.num_warmup_steps); }
  int num_training_steps() { return steps("num_training_steps", options_.num_training_steps); }

  [[nodiscard]] std::optional<int> optional_training_steps() const { return options_.num_training_steps; }

  template <typename T>
  void require(const std::string& key, T& target) {
    take(key, target);
    if (!options_.scheduler_specific_kwargs.contains(key))
      problems_.push_back(key + ": missing; this schedule needs it");
  }
  /// Takes an argument, if it is given.
  template <typename T>
  void take(const std::string& key, T& target) {
    if (const auto* value = find(key); value != nullptr && !detail::read_state(*value, target)) wrong(key, *value);
  }
  template <typename T>
  void take(const std::string& key, std::optional<T>& target) {
    if (const auto* value = find(key);
        value != nullptr && !value->is_null() && !detail::read_state(*value, target.emplace()))
      wrong(key, *value);
  }
  void take(const std::string& key, PerGroup& target) {
    const auto* value = find(key);
    double number = 0.0;
    std::vector<double> numbers;
    if (value == nullptr) return;
    if (detail::read_state(*value, number)) {
      target = number;
    } else if (detail::read_state(*value, numbers)) {
      target = numbers;
    } else {
      wrong(key, *value);
    }
  }

  void finish() {
    for (const auto& [key, value] : options_.scheduler_specific_kwargs) {
      if (!known_.contains(key)) problems_.push_back(key + ": no argument of this schedule");
    }
    check_argument(problems_.empty(), "get_scheduler: {}: {}", name_, fmt::join(problems_, "; "));
  }

 private:
  int steps(const char* key, const std::optional<int>& given) {
    if (!given) problems_.push_back(std::string(key) + ": missing; this schedule needs it");
    return given.value_or(0);
  }
  const Value* find(const std::string& key) {
    known_.insert(key);
    const auto found = options_.scheduler_specific_kwargs.find(key);
    return found == options_.scheduler_specific_kwargs.end() ? nullptr : &found->second;
  }
  void wrong(const std::string& key, const Value& value) {
    problems_.push_back(fmt::format("{}: a value of another type: {}", key, value.type_name()));
  }

  const std::string& name_;
  const GetSchedulerOptions& options_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

using Make = std::unique_ptr<LRScheduler> (*)(const ScheduledOptimizer&, Arguments&);

template <typename Options>
Options both_steps(Arguments& arguments) {
  Options options;
  options.num_warmup_steps = arguments.num_warmup_steps();
  options.num_training_steps = arguments.num_training_steps();
  return options;
}

std::unique_ptr<LRScheduler> constant(const ScheduledOptimizer& optimizer, Arguments&) {
  return get_constant_schedule(optimizer);
}

std::unique_ptr<LRScheduler> constant_with_warmup(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  const int num_warmup_steps = arguments.num_warmup_steps();
  arguments.finish();
  return get_constant_schedule_with_warmup(optimizer, num_warmup_steps);
}

std::unique_ptr<LRScheduler> linear(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  const auto options = both_steps<LinearWarmupOptions>(arguments);
  arguments.finish();
  return get_linear_schedule_with_warmup(optimizer, options);
}

std::unique_ptr<LRScheduler> cosine(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  auto options = both_steps<CosineWarmupOptions>(arguments);
  arguments.take("num_cycles", options.num_cycles);
  arguments.finish();
  return get_cosine_schedule_with_warmup(optimizer, options);
}

std::unique_ptr<LRScheduler> cosine_with_restarts(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  auto options = both_steps<HardRestartsWarmupOptions>(arguments);
  arguments.take("num_cycles", options.num_cycles);
  arguments.finish();
  return get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, options);
}

std::unique_ptr<LRScheduler> polynomial(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  auto options = both_steps<PolynomialWarmupOptions>(arguments);
  arguments.take("lr_end", options.lr_end);
  arguments.take("power", options.power);
  arguments.finish();
  return get_polynomial_decay_schedule_with_warmup(optimizer, options);
}

std::unique_ptr<LRScheduler> inverse_sqrt(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  const int num_warmup_steps = arguments.num_warmup_steps();
  std::optional<int> timescale;
  arguments.take("timescale", timescale);
  arguments.finish();
  return get_inverse_sqrt_schedule(optimizer, num_warmup_steps, timescale);
}

template <typename Options>
Options cosine_min_lr(Arguments& arguments) {
  auto options = both_steps<Options>(arguments);
  arguments.take("num_cycles", options.num_cycles);
  arguments.take("min_lr", options.min_lr);
  arguments.take("min_lr_rate", options.min_lr_rate);
  return options;
}

std::unique_ptr<LRScheduler> cosine_with_min_lr(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  const auto options = cosine_min_lr<CosineMinLrWarmupOptions>(arguments);
  arguments.finish();
  return get_cosine_with_min_lr_schedule_with_warmup(optimizer, options);
}

std::unique_ptr<LRScheduler> cosine_warmup_with_min_lr(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  auto options = cosine_min_lr<CosineMinLrRateWarmupOptions>(arguments);
  arguments.take("warmup_lr_rate", options.warmup_lr_rate);
  arguments.finish();
  return get_cosine_with_min_lr_schedule_with_warmup_lr_rate(optimizer, options);
}

std::unique_ptr<LRScheduler> warmup_stable_decay(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  WsdOptions options;
  options.num_warmup_steps = arguments.num_warmup_steps();
  options.num_training_steps = arguments.optional_training_steps();
  arguments.require("num_decay_steps", options.num_decay_steps);
  arguments.take("num_stable_steps", options.num_stable_steps);
  arguments.take("warmup_type", options.warmup_type);
  arguments.take("decay_type", options.decay_type);
  arguments.take("min_lr_ratio", options.min_lr_ratio);
  arguments.take("num_cycles", options.num_cycles);
  arguments.finish();
  return get_wsd_schedule(optimizer, options);
}

// What both schedules that follow a metric take.
template <typename Options>
void take_of_metric_schedule(Arguments& arguments, Options& options) {
  arguments.take("mode", options.mode);
  arguments.take("factor", options.factor);
  arguments.take("patience", options.patience);
  arguments.take("threshold", options.threshold);
  arguments.take("threshold_mode", options.threshold_mode);
  arguments.take("cooldown", options.cooldown);
}

std::unique_ptr<LRScheduler> reduce_lr_on_plateau(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  ReduceLROnPlateauOptions options;
  take_of_metric_schedule(arguments, options);
  arguments.take("min_lr", options.min_lr);
  arguments.take("eps", options.eps);
  arguments.finish();
  return get_reduce_on_plateau_schedule(optimizer, options);
}

std::unique_ptr<LRScheduler> greedy(const ScheduledOptimizer& optimizer, Arguments& arguments) {
  GreedyLROptions options;
  bool verbose = false;  // says what it does; there is nothing to see here
  take_of_metric_schedule(arguments, options);
  arguments.take("warmup", options.warmup);
  arguments.take("min_lr", options.min_lr);
  arguments.take("max_lr", options.max_lr);
  arguments.take("eps", options.eps);
  arguments.take("verbose", verbose);
  arguments.take("smooth", options.smooth);
  arguments.take("window_size", options.window_size);
  arguments.take("reset_start", options.reset_start);
  arguments.finish();
  return std::make_unique<GreedyLR>(optimizer, options);
}

}  // namespace

std::unique_ptr<LRScheduler> get_scheduler(const std::string& name, const ScheduledOptimizer& optimizer,
                                           const GetSchedulerOptions& options) {
  static const std::map<std::string, Make> kSchedules{{"linear", linear},
                                                      {"cosine", cosine},
                                                      {"cosine_with_restarts", cosine_with_restarts},
                                                      {"polynomial", polynomial},
                                                      {"constant", constant},
                                                      {"constant_with_warmup", constant_with_warmup},
                                                      {"inverse_sqrt", inverse_sqrt},
                                                      {"reduce_lr_on_plateau", reduce_lr_on_plateau},
                                                      {"cosine_with_min_lr", cosine_with_min_lr},
                                                      {"cosine_warmup_with_min_lr", cosine_warmup_with_min_lr},
                                                      {"warmup_stable_decay", warmup_stable_decay},
                                                      {"greedy", greedy}};
  const auto schedule = kSchedules.find(name);
  std::vector<std::string> names;
  for (const auto& entry : kSchedules) names.push_back(entry.first);
  check_argument(schedule != kSchedules.end(), "get_scheduler: name: expected one of {}, got '{}'",
                 fmt::join(names, ", "), name);
  Arguments arguments(name, options);
  return schedule->second(optimizer, arguments);
}

}  // namespace accel
