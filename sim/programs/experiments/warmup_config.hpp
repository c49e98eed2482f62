#pragma once

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

/// The schedules of Transformers in an experiment file. Thread rule: values.
namespace accel::programs {

ScheduleFactory read_constant_with_warmup(YamlReader& reader);
ScheduleFactory read_linear_with_warmup(YamlReader& reader);
ScheduleFactory read_cosine_with_warmup(YamlReader& reader);
ScheduleFactory read_cosine_with_hard_restarts_with_warmup(YamlReader& reader);
ScheduleFactory read_polynomial_decay_with_warmup(YamlReader& reader);
ScheduleFactory read_inverse_sqrt(YamlReader& reader);
ScheduleFactory read_cosine_with_min_lr_with_warmup(YamlReader& reader);
ScheduleFactory read_cosine_with_min_lr_with_warmup_lr_rate(YamlReader& reader);
ScheduleFactory read_wsd(YamlReader& reader);

}  // namespace accel::programs
