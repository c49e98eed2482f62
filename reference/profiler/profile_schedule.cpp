#include "reference/profiler/profile_schedule.hpp"

namespace accel::profiler {
namespace {

bool is_recording(ProfileAction action) {
  return action == ProfileAction::kRecord || action == ProfileAction::kRecordAndSave;
}

}  // namespace

ProfileAction profile_action(const ProfileSchedule& schedule, std::int64_t step) {
  if (step < schedule.skip_first) return ProfileAction::kNone;
  const auto cycle = schedule.wait + schedule.warmup + schedule.active;
  const auto place = step - schedule.skip_first;
  if (schedule.repeat > 0 && place / cycle >= schedule.repeat) return ProfileAction::kNone;
  const auto in_cycle = place % cycle;
  if (in_cycle < schedule.wait) return ProfileAction::kNone;
  if (in_cycle < schedule.wait + schedule.warmup) return ProfileAction::kWarmup;
  return in_cycle == cycle - 1 ? ProfileAction::kRecordAndSave : ProfileAction::kRecord;
}

ProfileTransition profile_transition(ProfileAction before, ProfileAction now) {
  const bool ends = before == ProfileAction::kRecordAndSave;
  const bool goes_on = before == ProfileAction::kRecord;
  return {.stop = ends,
          .ready = ends,
          .prepare = now != ProfileAction::kNone && !goes_on && before != ProfileAction::kWarmup,
          .start = is_recording(now) && !goes_on};
}

ProfileTransition profile_end(ProfileAction before) {
  return {.stop = is_recording(before), .ready = is_recording(before)};
}

}  // namespace accel::profiler
