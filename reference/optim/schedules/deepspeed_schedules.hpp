#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

/// The schedules that a DeepSpeed file can select, with DeepSpeed's values.
///
///     accel::WarmupDecayLR scheduler(
///         optimizer, {.total_num_steps = 1000, .warmup_max_lr = 3e-4, .warmup_num_steps = 100});
///
/// Before the first step the rates are at their minimum; the n-th step sets those of iteration n - 1. Thread rule: the
/// rank's thread. Source: deepspeed/runtime/lr_schedules.py of DeepSpeed 0.19.
namespace accel {

inline constexpr optim::Allowed<std::string> kWarmupTypes{
    [](const std::string& type) { return type == "log" || type == "linear"; }, "log or linear"};

struct WarmupLROptions {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  ///< default: the group's own rate
  int warmup_num_steps = 1000;
  std::string warmup_type = "log";  ///< or linear

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"warmup_min_lr", &WarmupLROptions::warmup_min_lr},
                      OptionField{"warmup_max_lr", &WarmupLROptions::warmup_max_lr},
                      OptionField{"warmup_num_steps", &WarmupLROptions::warmup_num_steps, kCount},
                      OptionField{"warmup_type", &WarmupLROptions::warmup_type, kWarmupTypes}};
  }
};

/// From `warmup_min_lr` to `warmup_max_lr`, then constant. A warm-up of 0 or 1 steps has 2, as in
/// DeepSpeed. Throws ArgumentError for a negative number of steps or an unknown type.
class WarmupLR : public LRScheduler {
 public:
  using Options = WarmupLROptions;
  WarmupLR(ScheduledOptimizer optimizer, Options options);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;

  Options options_;
};

struct WarmupDecayLROptions {
  int total_num_steps = 0;
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  int warmup_num_steps = 1000;
  std::string warmup_type = "log";  ///< or linear

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"total_num_steps", &WarmupDecayLROptions::total_num_steps, Presence::kRequired},
                      OptionField{"warmup_min_lr", &WarmupDecayLROptions::warmup_min_lr},
                      OptionField{"warmup_max_lr", &WarmupDecayLROptions::warmup_max_lr},
                      OptionField{"warmup_num_steps", &WarmupDecayLROptions::warmup_num_steps, kCount},
                      OptionField{"warmup_type", &WarmupDecayLROptions::warmup_type, kWarmupTypes}};
  }
};

/// From `warmup_min_lr` to `warmup_max_lr`, then linearly back until `total_num_steps`.
class WarmupDecayLR : public LRScheduler {
 public:
  using Options = WarmupDecayLROptions;
  WarmupDecayLR(ScheduledOptimizer optimizer, Options options);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;

  Options options_;
};

struct WarmupCosineLROptions {
  int total_num_steps = 0;
  double warmup_min_ratio = 0;
  int warmup_num_steps = 1000;
  double cos_min_ratio = 0.0001;
  std::string warmup_type = "log";  ///< or linear

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"total_num_steps", &WarmupCosineLROptions::total_num_steps, Presence::kRequired},
                      OptionField{"warmup_min_ratio", &WarmupCosineLROptions::warmup_min_ratio},
                      OptionField{"cos_min_ratio", &WarmupCosineLROptions::cos_min_ratio},
                      OptionField{"warmup_num_steps", &WarmupCosineLROptions::warmup_num_steps, kCount},
                      OptionField{"warmup_type", &WarmupCosineLROptions::warmup_type, kWarmupTypes}};
  }
};

/// The group's own rate times a ratio: from `warmup_min_ratio` to 1, then along a cosine to `cos_min_ratio`, then
/// constant.
class WarmupCosineLR : public LRScheduler {
 public:
  using Options = WarmupCosineLROptions;
  WarmupCosineLR(ScheduledOptimizer optimizer, Options options);

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;

  Options options_;
};

}  // namespace accel
