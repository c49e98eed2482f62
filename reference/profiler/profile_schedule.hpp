#pragma once

#include <cstdint>

#include "reference/config/profile_kwargs.hpp"

namespace accel::profiler {

enum class ProfileAction { kNone, kWarmup, kRecord, kRecordAndSave };

/// What is done in a step. Source: torch/profiler/profiler.py, schedule.
ProfileAction profile_action(const ProfileSchedule& schedule, std::int64_t step);

/// What a change from one step's action to the next's asks for, in this order.
struct ProfileTransition {
  bool stop = false;   ///< ends the recording
  bool ready = false;  ///< what was recorded is a trace; else it is dropped
  bool prepare = false, start = false;

  friend bool operator==(const ProfileTransition&, const ProfileTransition&) = default;
};
ProfileTransition profile_transition(ProfileAction before, ProfileAction now);
/// Where profiling ends in a step of this action.
ProfileTransition profile_end(ProfileAction before);

}  // namespace accel::profiler
