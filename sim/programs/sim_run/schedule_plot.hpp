#pragma once

#include <string>

#include "reference/pipeline/schedules/schedule_times.hpp"

namespace accel::programs {

/// Draws when each rank computes which micro-batch of which stage, as a separate SVG picture: time from left to
/// right, a row per rank. Actions that did not run are left out. Thread rule: pure.
std::string schedule_svg(const pipeline::Schedule& schedule, const pipeline::ScheduleTimes& times);

}  // namespace accel::programs
