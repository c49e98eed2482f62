#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/config/plugins/profile_kwargs.hpp"
#include "reference/profiler/key_averages.hpp"

namespace accel::profiler {

enum class ProfileAction { kNone, kWarmup, kRecord, kRecordAndSave };

/// Returns the action of a step. Source: torch/profiler/profiler.py, schedule.
ProfileAction profile_action(const ProfileSchedule& schedule, std::int64_t step);

/// The operations between two steps, to be executed in this order.
struct ProfileTransition {
  bool stop = false;   ///< ends the recording
  bool ready = false;  ///< the recording is a complete trace; otherwise it is dropped
  bool prepare = false, start = false;

  friend bool operator==(const ProfileTransition&, const ProfileTransition&) = default;
};
ProfileTransition profile_transition(ProfileAction before, ProfileAction now);
/// Returns the operations for ending the profiling in a step with this action.
ProfileTransition profile_end(ProfileAction before);

}  // namespace accel::profiler

namespace at {
class RecordFunction;
}

namespace accel {

struct RankContext;

/// Records the operators of a rank from construction to `finish()`.
///
///     accel::Profiler profiler(context,
///                              {.schedule_option = accel::ProfileSchedule{.wait = 1, .warmup = 1, .active = 3},
///                               .output_trace_dir = "traces"});
///     for (auto& batch : loader) {
///       train(batch);
///       profiler.step();
///     }
///     profiler.finish();                                   // traces/profile_0.json
///     accelerator.print(profiler.key_averages().table());
///
/// Note [Who can be profiled] in profile_recorder.hpp documents which threads a trace contains. Does not communicate.
/// Thread rule: the rank's thread, from construction to `finish()`.
/// Source: torch/profiler/profiler.py, profile; accelerate/accelerator.py, profile.
class Profiler {
 public:
  /// Throws ConfigError that lists all problems, including the activity "cuda" on simulated ranks.
  Profiler(RankContext& context, ProfileKwargs kwargs);
  /// Discards an unfinished recording.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Starts the next step of the schedule.
  void step();
  /// Ends the recording, calls on_trace_ready if a cycle was started, and writes the file in output_trace_dir. Further
  /// calls do nothing.
  void finish();

  [[nodiscard]] std::int64_t step_num() const { return step_; }
  /// Events of the last recorded cycle; empty before the first.
  [[nodiscard]] const std::vector<profiler::ProfileEvent>& events() const { return trace_.events; }
  [[nodiscard]] KeyAverages key_averages(bool group_by_input_shape = false) const {
    return accel::key_averages(events(), group_by_input_shape);
  }
  /// Writes the last recorded cycle as a Chrome trace. Throws StateError if nothing was recorded.
  void export_chrome_trace(const std::string& path) const;

 private:
  [[nodiscard]] profiler::ProfileAction action() const;
  void apply(const profiler::ProfileTransition& transition);
  void begin_step_range();

  RankContext& context_;
  ProfileKwargs kwargs_;
  std::unique_ptr<profiler::ProfileRecorder> recorder_;
  std::unique_ptr<at::RecordFunction> step_range_;
  profiler::ProfileTrace trace_;
  std::int64_t step_ = 0;
  bool is_prepared_ = false, is_started_ = false, is_finished_ = false;
};

}  // namespace accel
