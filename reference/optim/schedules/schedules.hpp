#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "reference/optim/schedules/combined_schedules.hpp"
#include "reference/optim/schedules/cosine_schedules.hpp"
#include "reference/optim/schedules/cyclic_lr.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "reference/optim/schedules/deepspeed_schedules.hpp"
#include "reference/optim/schedules/get_scheduler.hpp"
#include "reference/optim/schedules/greedy_lr.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "reference/optim/schedules/warmup_schedules.hpp"

/// All learning-rate schedules that a file or `get_scheduler` can select by name.
///
///     accel::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 100});
///     auto same = accel::get_scheduler("cosine", optimizer, {.num_warmup_steps = 10, .num_training_steps = 100});
///
/// To add a schedule, write its header and source, with a list of its options (`fields()`), and list it here and in
/// reference/CMakeLists.txt. Experiments, `get_scheduler`, DeepSpeed files and the recorded tests iterate over
/// `kSchedules`. Schedules made of schedules or functions (SequentialLR, ChainedScheduler, LambdaLR) are not in the
/// table, because their arguments are not plain values. Thread rule: constants.
namespace accel::optim {

/// The names of a schedule; null where it has none.
struct ScheduleNames {
  const char* experiment = nullptr;    ///< in YAML experiments
  const char* transformers = nullptr;  ///< for `get_scheduler`
  const char* deepspeed = nullptr;     ///< the type in a DeepSpeed file
};

/// `make(optimizer, options)` returns a `std::unique_ptr` of the schedule.
template <typename OptionsType, typename Make>
struct ScheduleEntry {
  using Options = OptionsType;
  ScheduleNames names;
  Make make;
};
template <typename Schedule, typename Options>
using MakeSchedule = std::unique_ptr<Schedule> (*)(const ScheduledOptimizer&, Options);
template <typename Schedule, typename Options>
ScheduleEntry(ScheduleNames, MakeSchedule<Schedule, Options>)
    -> ScheduleEntry<std::remove_cvref_t<Options>, MakeSchedule<Schedule, Options>>;

template <typename Schedule>
std::unique_ptr<Schedule> make_schedule(const ScheduledOptimizer& optimizer,
                                        const typename Schedule::Options& options) {
  return std::make_unique<Schedule>(optimizer, options);
}

inline constexpr std::tuple kSchedules{
    // torch
    ScheduleEntry{{.experiment = "step"}, make_schedule<StepLR>},
    ScheduleEntry{{.experiment = "multi_step"}, make_schedule<MultiStepLR>},
    ScheduleEntry{{.experiment = "constant"}, make_schedule<ConstantLR>},
    ScheduleEntry{{.experiment = "linear_lr"}, make_schedule<LinearLR>},
    ScheduleEntry{{.experiment = "exponential"}, make_schedule<ExponentialLR>},
    ScheduleEntry{{.experiment = "polynomial"}, make_schedule<PolynomialLR>},
    ScheduleEntry{{.experiment = "cosine_annealing"}, make_schedule<CosineAnnealingLR>},
    ScheduleEntry{{.experiment = "cosine_annealing_warm_restarts"}, make_schedule<CosineAnnealingWarmRestarts>},
    ScheduleEntry{{.experiment = "one_cycle"}, make_schedule<OneCycleLR>},
    ScheduleEntry{{.experiment = "cyclic"}, make_schedule<CyclicLR>},
    ScheduleEntry{{.experiment = "reduce_lr_on_plateau", .transformers = "reduce_lr_on_plateau"},
                  make_schedule<ReduceLROnPlateau>},
    // Transformers
    ScheduleEntry{
        {.transformers = "constant"},
        +[](const ScheduledOptimizer& optimizer, ConstantOptions) { return get_constant_schedule(optimizer); }},
    ScheduleEntry{{.experiment = "constant_with_warmup", .transformers = "constant_with_warmup"},
                  +[](const ScheduledOptimizer& optimizer, ConstantWarmupOptions options) {
                    return get_constant_schedule_with_warmup(optimizer, options.num_warmup_steps);
                  }},
    ScheduleEntry{{.experiment = "linear_with_warmup", .transformers = "linear"}, get_linear_schedule_with_warmup},
    ScheduleEntry{{.experiment = "cosine_with_warmup", .transformers = "cosine"}, get_cosine_schedule_with_warmup},
    ScheduleEntry{{.experiment = "cosine_with_hard_restarts_with_warmup", .transformers = "cosine_with_restarts"},
                  get_cosine_with_hard_restarts_schedule_with_warmup},
    ScheduleEntry{{.experiment = "polynomial_decay_with_warmup", .transformers = "polynomial"},
                  get_polynomial_decay_schedule_with_warmup},
    ScheduleEntry{{.experiment = "inverse_sqrt", .transformers = "inverse_sqrt"},
                  +[](const ScheduledOptimizer& optimizer, InverseSqrtOptions options) {
                    return get_inverse_sqrt_schedule(optimizer, options.num_warmup_steps, options.timescale);
                  }},
    ScheduleEntry{{.experiment = "cosine_with_min_lr_with_warmup", .transformers = "cosine_with_min_lr"},
                  get_cosine_with_min_lr_schedule_with_warmup},
    ScheduleEntry{{.experiment = "cosine_with_min_lr_with_warmup_lr_rate", .transformers = "cosine_warmup_with_min_lr"},
                  get_cosine_with_min_lr_schedule_with_warmup_lr_rate},
    ScheduleEntry{{.experiment = "wsd", .transformers = "warmup_stable_decay"}, get_wsd_schedule},
    ScheduleEntry{{.transformers = "greedy"}, make_schedule<GreedyLR>},
    // DeepSpeed
    ScheduleEntry{{.deepspeed = "WarmupLR"}, make_schedule<WarmupLR>},
    ScheduleEntry{{.deepspeed = "WarmupDecayLR"}, make_schedule<WarmupDecayLR>},
    ScheduleEntry{{.deepspeed = "WarmupCosineLR"}, make_schedule<WarmupCosineLR>},
};

/// Calls `visit(name, entry)` for every schedule that has a name in a column:
/// `for_each_schedule<&ScheduleNames::deepspeed>([](const char* type, const auto& entry) { ... })`.
template <const char* ScheduleNames::*kColumn, typename Visit>
void for_each_schedule(Visit&& visit) {
  const auto visit_if_named = [&]<std::size_t kIndex>(std::integral_constant<std::size_t, kIndex>) {
    constexpr const auto& entry = std::get<kIndex>(kSchedules);
    if constexpr (entry.names.*kColumn != nullptr) visit(entry.names.*kColumn, entry);
  };
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (visit_if_named(std::integral_constant<std::size_t, kIndices>()), ...);
  }(std::make_index_sequence<std::tuple_size_v<decltype(kSchedules)>>());
}

}  // namespace accel::optim
