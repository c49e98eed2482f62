#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace accel {

class Profiler;

/// Which steps are recorded: `skip_first` steps are skipped once. Then a cycle of `wait` skipped steps, `warmup` steps
/// whose recording is discarded, and `active` recorded steps runs `repeat` times (0: until the end).
/// Source: torch/profiler/profiler.py, schedule.
struct ProfileSchedule {
  std::int64_t wait = 0, warmup = 0, active = 1, repeat = 0, skip_first = 0;
};

/// Options of Accelerator::profile. Source: accelerate/utils/dataclasses.py, ProfileKwargs.
struct ProfileKwargs {
  std::vector<std::string> activities = {};             ///< "cpu" and "cuda"; empty: all that are available
  std::optional<ProfileSchedule> schedule_option = {};  ///< default: record everything
  /// Called after each recorded cycle of the schedule, and at the end for an incomplete cycle.
  std::function<void(Profiler&)> on_trace_ready = {};
  bool record_shapes = false;   ///< sizes of operators' inputs
  bool profile_memory = false;  ///< bytes that operators allocate and free
  bool with_stack = false;      ///< unsupported (an error): it records Python stacks
  bool with_flops = false;      ///< for matrix products, convolutions, additions and multiplications
  bool with_modules = false;    ///< unsupported (an error): it records TorchScript modules
  /// Folder for profile_{rank}.json, a Chrome trace (chrome://tracing, Perfetto) of the last cycle.
  std::optional<std::string> output_trace_dir = {};
};

/// Returns the problems of the options; empty if they are valid.
std::vector<std::string> problems_of(const ProfileKwargs& kwargs);

}  // namespace accel
