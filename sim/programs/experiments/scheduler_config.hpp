#pragma once

#include <memory>
#include <optional>
#include <string>

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

/// The `scheduler` of an experiment file: a name, and the schedule's arguments by their Python names.
///
///     scheduler: {name: one_cycle, max_lr: 0.1, total_steps: 100}
///     scheduler: {name: sequential, milestones: [10], schedulers: [{name: linear_lr}, {name: cosine_annealing, T_max:
///     90}]}
///
/// | name | is |
/// |---|---|
/// | `linear` {warmup_steps, total_steps} | a LambdaLR: (k+1)/(warmup+1), then max(0, (total-k)/max(1, total-warmup)) |
/// | `step`, `multi_step`, `constant`, `linear_lr`, `exponential`, `polynomial`, `cosine_annealing`,
///   `cosine_annealing_warm_restarts`, `one_cycle`, `cyclic` | torch's, without "LR" |
/// | `multiplicative` {factor} | torch's, by the same factor at each step |
/// | `reduce_lr_on_plateau` | torch's, of the mean loss over all ranks of each micro-batch; no part of another |
/// | `sequential` {schedulers, milestones}, `chained` {schedulers} | torch's, of schedules as here |
/// | `constant_with_warmup`, `linear_with_warmup`, `cosine_with_warmup`, `cosine_with_hard_restarts_with_warmup`,
///   `polynomial_decay_with_warmup`, `inverse_sqrt`, `cosine_with_min_lr_with_warmup`,
///   `cosine_with_min_lr_with_warmup_lr_rate`, `wsd` | Transformers', without "get" and "schedule" |
///
/// One schedule steps once for each rank and update, so `total_steps` counts those. A rate has one number: an
/// experiment has one parameter group. Thread rule: values.
namespace accel::programs {

struct SchedulerConfig {
  static constexpr const char* kPlateau = "reduce_lr_on_plateau";
  std::string name;
  ScheduleFactory make;  // null if there is a problem
  [[nodiscard]] bool follows_metric() const { return name == kPlateau; }
};

SchedulerConfig read_scheduler(YamlReader reader);
/// Null if there is no schedule.
std::unique_ptr<LRScheduler> build_scheduler(const std::optional<SchedulerConfig>& config,
                                             torch::optim::Optimizer& optimizer);

}  // namespace accel::programs
