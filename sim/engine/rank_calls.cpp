#include "sim/engine/rank_calls.hpp"

namespace accel::sim {

RankCalls::RankCalls(const WorldOptions& options, EventLog& log, const FailureRecord& failures, RankStates& states,
                     RankScheduler& scheduler, RankClocks& clocks)
    : options_(options), log_(log), failures_(failures), states_(states), scheduler_(scheduler), clocks_(clocks) {}

void RankCalls::begin(int rank) {
  scheduler_.yield(rank);
  clocks_.end_compute(rank);
  failures_.throw_if_failed();
}

void RankCalls::announce(int rank, std::string_view event, const LastCall& call) {
  states_.set_last_call(rank, call);
  const bool is_message = call.peer != kNoPeer;
  log_.append(event, rank, call.op, call.group, is_message ? -1 : call.sequence);
}

void RankCalls::wait(int rank, Meeting& meeting) {
  clocks_.end_compute(rank);
  const auto begin = clocks_.read(rank);
  if (meeting.has_ended()) {
    scheduler_.yield(rank);
  } else {
    const auto* call = meeting.is_message() ? nullptr : meeting.any_call();
    log_.append("wait", rank, call != nullptr ? call->op : Collective::kRecv, &meeting.group(),
                meeting.is_message() ? -1 : static_cast<std::int64_t>(meeting.sequence()));
    block(rank, meeting);
    log_.append("go_on", rank);
  }
  if (auto error = meeting.error(rank)) std::rethrow_exception(error);
  clocks_.record_wait(rank, meeting, begin);
  clocks_.begin_compute(rank);
}

bool RankCalls::poll(int rank, const Meeting& meeting) {
  if (!meeting.has_ended()) scheduler_.poll(rank);
  return meeting.has_ended();
}

void RankCalls::block(int rank, Meeting& meeting) {
  states_.block(rank, meeting);
  if (meeting.is_message()) meeting.set_deadline(std::chrono::steady_clock::now() + options_.timeout);
  scheduler_.block(rank, meeting);
  states_.unblock(rank);
}

void RankCalls::end_meeting(Meeting& meeting, const std::exception_ptr& error, RankErrors rank_errors) {
  if (!meeting.claim(error, std::move(rank_errors))) return;
  const auto shared = meeting.weak_from_this().lock();  // a waiter may drop the last other reference
  if (options_.keeps_time()) meeting.times.wall_end = clocks_.wall_now();
  scheduler_.end(meeting);
}

}  // namespace accel::sim
