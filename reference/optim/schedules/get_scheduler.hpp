#pragma once

#include <memory>
#include <optional>
#include <string>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/tree/value.hpp"

namespace accel {

struct GetSchedulerOptions {
  std::optional<int> num_warmup_steps = {}, num_training_steps = {};
  /// Further arguments of the schedule, by their Python names.
  Value::Dict scheduler_specific_kwargs = {};
};

/// Creates a schedule of Hugging Face Transformers by its name there, such as linear, cosine_with_restarts or
/// warmup_stable_decay; schedules.hpp lists all names.
///
///     auto scheduler = accel::get_scheduler("polynomial", optimizer,
///         {.num_warmup_steps = 10, .num_training_steps = 100, .scheduler_specific_kwargs = {{"power", 2.0}}});
///
/// Throws ArgumentError with all problems: an unknown name, a missing number of steps, an argument that the schedule
/// does not have. Thread rule: the rank's thread. Source: transformers/optimization.py, get_scheduler.
std::unique_ptr<LRScheduler> get_scheduler(const std::string& name, const ScheduledOptimizer& optimizer,
                                           const GetSchedulerOptions& options = {});

}  // namespace accel
