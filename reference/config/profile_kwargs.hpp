#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace accel {

class Profiler;

/// Which steps are recorded: `skip_first` pass once; then, `repeat` times (0: for ever), `wait` pass, `warmup` run the
/// recorder and forget what it saw, and `active` are recorded. Source: torch/profiler/profiler.py, schedule.
struct ProfileSchedule {
  std::int64_t wait = 0, warmup = 0, active = 1, repeat = 0, skip_first = 0;
};

/// Of Accelerator::profile. Source: accelerate/utils/dataclasses.py, ProfileKwargs.
struct ProfileKwargs {
  std::vector<std::string> activities = {};             ///< "cpu" and "cuda"; none: what there is
  std::optional<ProfileSchedule> schedule_option = {};  ///< default: all from the beginning to the end
  /// Called when a cycle of the schedule has been recorded, and at the end for one that was begun.
  std::function<void(Profiler&)> on_trace_ready = {};
  bool record_shapes = false;   ///< sizes of operators' inputs
  bool profile_memory = false;  ///< bytes that operators allocate and free
  bool with_stack = false;      ///< an error here: there is no Python whose lines could be told
  bool with_flops = false;      ///< of matrix products, convolutions, additions and multiplications
  bool with_modules = false;    ///< an error here: of TorchScript's modules alone
  /// profile_{rank}.json in this folder, a Chrome trace (chrome://tracing, Perfetto) of the last cycle.
  std::optional<std::string> output_trace_dir = {};
};

/// What is wrong with it; nothing, if it can be.
std::vector<std::string> problems_of(const ProfileKwargs& kwargs);

}  // namespace accel
