// The schedule is a state machine of pure functions (profile_action, profile_transition, profile_end), so that
// tests can compare it with torch.profiler's for many schedules without recording anything.
#include "reference/profiler/profiler.hpp"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <algorithm>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/rank_context.hpp"

namespace accel::profiler {
namespace {

bool is_recording(ProfileAction action) {
  return action == ProfileAction::kRecord || action == ProfileAction::kRecordAndSave;
}

}  // namespace

// Source: torch/profiler/profiler.py, schedule. The last active step of a cycle is RECORD_AND_SAVE there.
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

// Source: torch/profiler/profiler.py, profile.action_map. The two cases that are not obvious: consecutive
// recording steps do not restart the profiler, and a warm-up that directly follows a finished cycle prepares it
// again.
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

namespace accel {

using profiler::ProfileAction;

namespace {

bool records_cuda(const ProfileKwargs& kwargs) {
  if (kwargs.activities.empty()) return at::hasCUDA();
  return std::find(kwargs.activities.begin(), kwargs.activities.end(), "cuda") != kwargs.activities.end();
}

// Without explicit activities, CUDA is recorded if it is available, as in torch.profiler. Only an explicit
// request can be an error.
std::unique_ptr<profiler::ProfileRecorder> make_recorder(const RankContext& context, const ProfileKwargs& kwargs) {
  auto problems = problems_of(kwargs);
  const bool is_simulated = context.backend == "sim";
  const bool asks_for_cuda = !kwargs.activities.empty() && records_cuda(kwargs);
  if (asks_for_cuda && is_simulated)
    problems.emplace_back("activities: cuda is unavailable, because simulated ranks run on the CPU; remove it");
  else if (asks_for_cuda && !at::hasCUDA())
    problems.emplace_back("activities: cuda is unavailable on this machine; remove it");
  check_config(problems.empty(), "profile: {}", listed(problems, "; "));
  if (is_simulated) return profiler::make_thread_recorder(kwargs, context.rank);
  return profiler::make_process_recorder(kwargs, records_cuda(kwargs));
}

}  // namespace

Profiler::Profiler(RankContext& context, ProfileKwargs kwargs)
    : context_(context), kwargs_(std::move(kwargs)), recorder_(make_recorder(context_, kwargs_)) {
  apply(profiler::profile_transition(ProfileAction::kNone, action()));
  begin_step_range();
}

// Without finish(), for example after an exception, the profiler must still be stopped: Kineto's is process-wide.
Profiler::~Profiler() {
  try {
    step_range_.reset();
    if (is_started_)
      (void)recorder_->stop();
    else if (is_prepared_)
      recorder_->discard();
  } catch (const std::exception&) {
    // The recording is discarded in any case.
  }
}

// Without a schedule every step records, and finish() ends the only cycle.
ProfileAction Profiler::action() const {
  return kwargs_.schedule_option ? profiler::profile_action(*kwargs_.schedule_option, step_) : ProfileAction::kRecord;
}

// The order matters: on_trace_ready reads the trace of the cycle that stopped, before the next one starts.
void Profiler::apply(const profiler::ProfileTransition& transition) {
  if (transition.stop) {
    is_started_ = false;
    trace_ = recorder_->stop();
  }
  if (transition.ready && kwargs_.on_trace_ready) kwargs_.on_trace_ready(*this);
  if (transition.prepare) {
    recorder_->prepare();
    is_prepared_ = true;
  }
  if (transition.start) {
    recorder_->start();
    is_prepared_ = false;
    is_started_ = true;
  }
}

// Marks the step in the trace. Source: torch/profiler/profiler.py, which names the range "ProfilerStep#N" only if
// there is a schedule.
void Profiler::begin_step_range() {
  if (!kwargs_.schedule_option) return;
  step_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (step_range_->isActive()) step_range_->before(fmt::format("ProfilerStep#{}", step_));
}

// The range of the old step ends before the profiler changes its state and the new one begins after it, so that
// both are recorded in the state that belongs to their step.
void Profiler::step() {
  check_state(!is_finished_, "profile: step() after finish()");
  step_range_.reset();
  const auto before = action();
  ++step_;
  apply(profiler::profile_transition(before, action()));
  begin_step_range();
}

// The recorder is released before the file is written, so that another rank of this process may start to profile.
void Profiler::finish() {
  if (std::exchange(is_finished_, true)) return;
  step_range_.reset();
  if (std::exchange(is_prepared_, false)) recorder_->discard();
  apply(profiler::profile_end(action()));
  recorder_.reset();
  if (!kwargs_.output_trace_dir || !trace_.save) return;
  context_.files->make_folder(*kwargs_.output_trace_dir);
  export_chrome_trace(fmt::format("{}/profile_{}.json", *kwargs_.output_trace_dir, context_.rank));
}

void Profiler::export_chrome_trace(const std::string& path) const {
  check_state(trace_.save != nullptr,
              "profile: nothing was recorded in {} steps; check schedule_option, or call finish() first if there is no "
              "schedule",
              step_ + 1);
  trace_.save(*context_.files, path);
}

}  // namespace accel
