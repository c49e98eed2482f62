// The boundary between a rank's own code and the engine. Every call passes through begin and end, which keep
// the schedule, the clocks and the check for a failed run in one order for all kinds of calls.
#include "sim/engine/rank_calls.hpp"

namespace accel::sim {

RankCalls::RankCalls(const WorldOptions& options, EventLog& log, const FailureRecord& failures, RankStates& states,
                     RankScheduler& scheduler, RankClocks& clocks)
    : options_(options), log_(log), failures_(failures), states_(states), scheduler_(scheduler), clocks_(clocks) {}

// Yields first, so that everything after it, including the event log, happens in the order that the schedule
// chose. Waiting for the turn uses no processor time and does not distort the compute clock. A rank that
// computes learns of a failed run here, in its next call.
void RankCalls::begin(int rank) {
  scheduler_.yield(rank);
  clocks_.end_compute(rank);
  failures_.throw_if_failed();
}

// The log omits the number of a message: it counts per pair of ranks and would read like a collective's.
void RankCalls::record_call(int rank, std::string_view event, const LastCall& call) {
  states_.set_last_call(rank, call);
  const bool is_message = call.peer != kNoPeer;
  log_.append(event, rank, call.op, call.group, is_message ? -1 : call.sequence);
}

// A meeting that has ended still yields: otherwise a serial schedule would never let others run between two
// calls of a rank that always finds its results ready. On an error the clocks are not advanced; the run is over.
OpenWait RankCalls::begin_wait(int rank, Meeting& meeting) {
  clocks_.end_compute(rank);
  const auto begin = clocks_.read(rank);
  if (meeting.has_ended()) {
    scheduler_.yield(rank);
    return {.begin = begin};
  }
  const auto* call = meeting.is_message() ? &*meeting.calls().front() : meeting.any_call();
  log_.append("wait", rank, call != nullptr ? call->op : Collective::kRecv, &meeting.group(),
              meeting.is_message() ? -1 : static_cast<std::int64_t>(meeting.sequence()));
  // Gloo counts a receive's time-out from the wait, not from the call.
  if (meeting.is_message()) meeting.set_deadline(std::chrono::steady_clock::now() + options_.timeout);
  return {.begin = begin, .is_logged = true};
}

void RankCalls::end_wait(int rank, const Meeting& meeting, const OpenWait& wait) {
  if (wait.is_logged) log_.append("go_on", rank);
  if (auto error = meeting.error(rank)) std::rethrow_exception(error);
  clocks_.record_wait(rank, meeting, wait.begin);
  clocks_.begin_compute(rank);
}

void RankCalls::wait(int rank, Meeting& meeting) {
  const auto wait = begin_wait(rank, meeting);
  if (!meeting.has_ended()) block(rank, meeting);
  end_wait(rank, meeting, wait);
}

// Ends the rank's turn only while the meeting is open; a loop over isCompleted() then makes progress in any schedule.
bool RankCalls::poll(int rank, const Meeting& meeting) {
  if (!meeting.has_ended()) scheduler_.poll(rank);
  return meeting.has_ended();
}

void RankCalls::block(int rank, Completion& completion, std::span<const RankWait> waits) {
  states_.set_waits(rank, waits);
  scheduler_.block(rank, completion);
  states_.set_waits(rank, {});
}

void RankCalls::block(int rank, Meeting& meeting) {
  const RankWait wait{.rank = rank, .meeting = &meeting, .call = states_.own_last_call(rank)};
  block(rank, meeting, {&wait, 1});
}

void RankCalls::end_meeting(Meeting& meeting, const std::exception_ptr& error, RankErrors rank_errors) {
  // Several threads may try to end one meeting (the last member, a failure, a fault); exactly one wins the claim.
  if (!meeting.claim(error, std::move(rank_errors))) return;
  const auto shared = meeting.weak_from_this().lock();  // keeps it alive: a waiter may drop the last other reference
  if (options_.keeps_time()) meeting.times.wall_end = clocks_.wall_now();
  scheduler_.end(meeting);
}

}  // namespace accel::sim
