#pragma once

#include "reference/config/yaml_reader.hpp"
#include "reference/optim/schedules/lr_scheduler.hpp"

/// The schedules of an experiment file that cycle rate and momentum. Thread rule: values.
namespace accel::programs {

ScheduleFactory read_one_cycle(YamlReader& reader);
ScheduleFactory read_cyclic(YamlReader& reader);

}  // namespace accel::programs
