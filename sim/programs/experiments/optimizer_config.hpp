#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

/// The `optimizer` of an experiment: a name, and the arguments of the Python class under their names.
///
///     optimizer: {name: rmsprop, lr: 0.01, momentum: 0.9, centered: true}
///
/// The names are those of `optim::kOptimizers`, and `sgd` for LibTorch's class, because Python's SGD is not fused by
/// default. Thread rule: pure functions.
namespace accel::programs {

struct OptimizerConfig {
  std::string name;
  optim::OptionsOfAll<std::variant> options;
};

OptimizerConfig read_optimizer(YamlReader reader);
std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerConfig& config,
                                                         std::vector<at::Tensor> parameters);

// The `scheduler` of an experiment file: a name, and the schedule's arguments under their Python names.
//
//     scheduler: {name: one_cycle, max_lr: 0.1, total_steps: 100}
//     scheduler: {name: sequential, milestones: [10],
//                 schedulers: [{name: linear_lr}, {name: cosine_annealing, T_max: 90}]}
//
// The names are those of `optim::kSchedules` and, for schedules made of functions or of other schedules, `linear`,
// `multiplicative`, `sequential` and `chained`; see configs/train/README.md. A schedule steps once per rank and update,
// so `total_steps` counts those steps. Rates are single numbers, because an experiment has one parameter group. Thread
// rule: values.

struct SchedulerConfig {
  static constexpr const char* kPlateau = "reduce_lr_on_plateau";
  std::string name;
  ScheduleFactory make;  // null if the section has problems
  [[nodiscard]] bool follows_metric() const { return name == kPlateau; }
};

SchedulerConfig read_scheduler(YamlReader reader);
/// Returns null if there is no schedule. Throws ConfigError if the schedule does not fit the optimizer.
std::unique_ptr<LRScheduler> build_scheduler(const std::optional<SchedulerConfig>& config,
                                             torch::optim::Optimizer& optimizer);

}  // namespace accel::programs
