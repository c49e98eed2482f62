// Ends a run that cannot continue. Every path follows one order: first record the failure or break the
// connections, then collect the open meetings and end them. See Note [Opening a meeting while the run fails].
#include "sim/engine/failure_handler.hpp"

#include <algorithm>

#include "reference/core/error_text.hpp"

namespace accel::sim {
namespace {

// The error that the other ranks get when one has thrown.
std::exception_ptr released_by(int rank, const std::exception_ptr& error) {
  std::string message = "an exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    message = text_of(exception);
  } catch (...) {
  }
  return std::make_exception_ptr(ReleasedError(fmt::format("rank {} failed: {}", rank, message)));
}

std::exception_ptr error_of(Diagnosis diagnosis) {
  return std::make_exception_ptr(DiagnosedError(std::move(diagnosis)));
}

}  // namespace

FailureHandler::FailureHandler(const WorldOptions& options, FailureRecord& record, GroupRegistry& groups,
                               RankStates& states, RankScheduler& scheduler, RankClocks& clocks, RankCalls& calls,
                               const FaultHooks& faults)
    : options_(options),
      record_(record),
      groups_(groups),
      states_(states),
      scheduler_(scheduler),
      clocks_(clocks),
      calls_(calls),
      faults_(faults),
      diagnostics_(states, scheduler, record, options.timeout) {}

// Locks one group at a time and releases each lock before meetings are ended: ending one runs callbacks
// (futures of autograd) that may call back into the engine.
Meetings FailureHandler::open_meetings() {
  Meetings meetings;
  for (const auto& group : groups_.all()) {
    const auto of_group = group->state->open_meetings();
    meetings.insert(meetings.end(), of_group.begin(), of_group.end());
  }
  const MutexLock lock(mutex_);
  meetings.insert(meetings.end(), lost_.begin(), lost_.end());
  return meetings;
}

// Only the first failure ends meetings; a later one finds none open, because opening one throws after a failure.
void FailureHandler::fail(const std::exception_ptr& error) {
  if (!record_.set_failure(error)) return;
  for (const auto& meeting : open_meetings()) calls_.end_meeting(*meeting, error);
}

void FailureHandler::fail_by_rank(int rank, const std::exception_ptr& error) {
  if (may_be_caused_by_fault()) {
    end_process(
        rank, [rank](int) { return connection_closed(rank); }, /*notice_seconds=*/0);
  } else if (!record_.has_failed()) {
    fail(released_by(rank, error));
  }
}

// Returns whether a rank's error may be the consequence of a fault. Then its peers must see what real Gloo
// shows them, a process that ends, and each rank reacts on its own; without a fault the run ends with the
// rank's own error.
bool FailureHandler::may_be_caused_by_fault() {
  if (record_.has_strike_that_may_stop()) return true;
  const auto groups = groups_.all();
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return group->state->connection.is_broken(); });
}

// Faults first: a model that made a rank hang turns the hang into the time-out that Gloo would report.
void FailureHandler::resolve_quiescence() {
  if (options_.continue_rank && options_.continue_rank()) return;
  if (!faults_.on_quiescence()) fail(error_of(diagnostics_.hang()));
}

// The meeting has no group and no members, so only a failure of the run or a time-out fault can end it.
void FailureHandler::hang(int rank) {
  {
    const MutexLock lock(mutex_);
    hanging_.push_back(rank);
  }
  sleep(rank, std::make_shared<Meeting>());
  throw InternalError("a rank that hangs was woken");
}

void FailureHandler::sleep(int rank, const std::shared_ptr<Meeting>& meeting) {
  {
    const MutexLock lock(mutex_);
    lost_.push_back(meeting);
  }
  // After the meeting is in the list: a failure from here on ends it, and an earlier one is thrown now.
  record_.throw_if_failed();
  clocks_.end_compute(rank);
  calls_.block(rank, *meeting);
  clocks_.begin_compute(rank);
  if (const auto error = meeting->error(rank)) std::rethrow_exception(error);
}

std::vector<int> FailureHandler::hanging() {
  const MutexLock lock(mutex_);
  return hanging_;
}

void FailureHandler::keep_open_until_failure(const std::shared_ptr<Meeting>& meeting) {
  {
    const MutexLock lock(mutex_);
    lost_.push_back(meeting);
  }
  // A thread that failed the run in the meantime saw this meeting neither in its group's list nor in `lost_`.
  if (record_.has_failed()) calls_.end_meeting(*meeting, record_.failure());
}

// Recorded before the groups break: whoever sees that knows why.
void FailureHandler::end_process(int rank, const RankErrors& errors, double notice_seconds) {
  {
    const MutexLock lock(mutex_);
    if (runs_after(changes_, rank)) changes_.push_back({rank, notice_seconds});
  }
  disconnect({rank}, errors);
}

bool FailureHandler::start_process(int rank, double notice_seconds, std::size_t num_changes) {
  const MutexLock lock(mutex_);
  if (changes_.size() != num_changes) return false;
  changes_.push_back({rank, notice_seconds, /*is_start=*/true});
  return true;
}

std::vector<ProcessChange> FailureHandler::process_changes() {
  const MutexLock lock(mutex_);
  return changes_;
}

// Breaks every group that contains one of the ranks. The members learn of it in their current or next
// collective of that group, which is how Gloo reports a closed connection.
void FailureHandler::disconnect(const std::vector<int>& ranks, const RankErrors& errors) {
  for (const auto& group : groups_.all()) {
    if (std::none_of(ranks.begin(), ranks.end(), [&](int rank) { return group->group_rank_of(rank) >= 0; })) continue;
    if (!group->state->connection.break_with(errors)) continue;
    for (const auto& meeting : group->state->open_meetings()) calls_.end_meeting(*meeting, nullptr, errors);
  }
}

void FailureHandler::time_out(double seconds, const RankErrors& errors) {
  // Diagnosed before the meetings end: afterwards nothing shows which rank waited for what.
  record_.add_diagnosis(diagnostics_.hang());
  for (const auto& group : groups_.all()) group->state->connection.break_with(errors);
  clocks_.advance_all(seconds);
  for (const auto& meeting : open_meetings()) calls_.end_meeting(*meeting, nullptr, errors);
}

// Called by the watchdog thread. A time-out is a last resort: hangs are normally found by counting, see Note
// [Detecting quiescence].
void FailureHandler::check_deadlines() {
  if (record_.has_failed()) return;
  if (const auto late = late_meeting(); late && !late->has_ended()) {
    fail(error_of(diagnostics_.timeout(*late)));
  } else if (const int rank = rank_of_stalled_turn(); rank >= 0) {
    fail(error_of(diagnostics_.stalled_turn(rank)));
  } else {
    return;
  }
  scheduler_.abandon();  // the rank that has the turn may never return
}

// Returns a meeting whose deadline has passed; null if there is none. If there are several, prefers one that a
// rank is blocked on: its report names the rank that the user sees waiting.
std::shared_ptr<Meeting> FailureHandler::late_meeting() {
  const auto now = std::chrono::steady_clock::now();
  std::shared_ptr<Meeting> late;
  for (const auto& meeting : open_meetings()) {
    // A meeting that no rank has joined yet has no call to report and no rank that waits.
    if (!meeting->has_group() || meeting->deadline() >= now || meeting->any_call() == nullptr) continue;
    const auto waits = states_.waits();
    if (!late ||
        std::any_of(waits.begin(), waits.end(), [&](const auto& wait) { return wait.meeting == meeting.get(); })) {
      late = meeting;
    }
  }
  return late;
}

// Returns the rank that has kept its serial turn for longer than the time-out; -1 if there is none. A rank may
// run as long as it likes if all others have left.
int FailureHandler::rank_of_stalled_turn() {
  const auto holder = scheduler_.holder();
  if (holder.rank < 0 || std::chrono::steady_clock::now() - holder.since < options_.timeout) return -1;
  for (int rank = 0; rank < states_.num_ranks(); ++rank) {
    if (rank != holder.rank && states_.state(rank).activity != Activity::kHasLeft) return holder.rank;
  }
  return -1;
}

}  // namespace accel::sim
