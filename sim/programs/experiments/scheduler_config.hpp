#pragma once

#include <memory>
#include <optional>
#include <string>

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

/// The `scheduler` of an experiment file: a name, and the schedule's arguments by their Python names.
///
///     scheduler: {name: one_cycle, max_lr: 0.1, total_steps: 100}
///     scheduler: {name: sequential, milestones: [10],
///                 schedulers: [{name: linear_lr}, {name: cosine_annealing, T_max: 90}]}
///
/// The names are those of `optim::kSchedules` and, for schedules that are made of functions or of other schedules,
/// `linear`, `multiplicative`, `sequential` and `chained`; configs/train/README.md describes them. One schedule steps
/// once per rank and update, so `total_steps` counts those. A rate has one number: an experiment has one parameter
/// group. Thread rule: values.
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
