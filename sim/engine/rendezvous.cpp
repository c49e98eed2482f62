// Steps 2 to 4 of Note [Life of a collective] for collectives.
#include "sim/engine/rendezvous.hpp"

#include <algorithm>

#include "sim/engine/diagnostics.hpp"

namespace accel::sim {

Rendezvous::Rendezvous(const WorldOptions& options, EventLog& log, const FaultHooks& faults, RankClocks& clocks,
                       RankCalls& calls, TransferTimes& transfers, FailureHandler& failures)
    : options_(options),
      log_(log),
      faults_(faults),
      clocks_(clocks),
      calls_(calls),
      transfers_(transfers),
      failures_(failures) {}

// See Note [Life of a collective]. The connection is checked twice: once for calls after a disconnect, and
// again by `next` under the mutex, because another rank may disconnect the group between the two.
std::shared_ptr<Meeting> Rendezvous::arrive(EngineGroup& group, int group_rank, Call call, Participant participant,
                                            const Compute& compute) {
  const int rank = group.ranks[group_rank];
  auto& state = *group.state;
  calls_.begin(rank);
  const auto sequence = state.collectives.num_joined(group_rank);
  faults_.before_call(rank, group, sequence, call);
  calls_.record_call(
      rank, "arrive",
      {.op = call.op, .group = &group, .sequence = static_cast<std::int64_t>(sequence), .where = call.where});
  if (state.connection.is_broken()) return failed_meeting(group, std::move(call));
  auto meeting = state.collectives.next(group, group_rank, {options_.timeout, options_.keeps_time()});
  if (!meeting) return failed_meeting(group, std::move(call));  // the connection was broken in the meantime

  const bool is_last = meeting->join(group_rank, std::move(call), std::move(participant), clocks_.ready(rank));
  if (is_last) complete(meeting, rank, compute);
  calls_.end(rank);
  return meeting;
}

// Runs on the thread of the last member to arrive. All others are waiting or will find the meeting ended, so
// this thread owns every slot until it ends the meeting. Each path must end it or hand it to `keep_open_until_failure`;
// otherwise the ranks would wait forever.
void Rendezvous::complete(const std::shared_ptr<Meeting>& meeting, int rank, const Compute& compute) {
  const auto& group = meeting->group();
  const auto& calls = meeting->calls();
  const auto& first = *calls.front();
  meeting->times.last_to_arrive = rank;
  group.state->collectives.close(*meeting);
  if (!std::all_of(calls.begin(), calls.end(), [&](const auto& call) { return agree(*call, first); }))
    return fail(*meeting, std::make_exception_ptr(DiagnosedError(diagnose_difference(*meeting))));
  MeetingFaults faults;
  try {
    faults = faults_.on_meeting(group, meeting->sequence(), first);
    if (!faults.is_lost && !faults.error) transfers_.set_of_collective(*meeting, faults.delays);
  } catch (...) {
    return fail(*meeting, std::current_exception());  // the network or fault model threw, so all ranks get the error
  }
  if (faults.error) return calls_.end_meeting(*meeting, nullptr, faults.error);
  if (faults.is_lost) return failures_.keep_open_until_failure(meeting);
  const auto error = run(compute, *meeting, faults.corruptions);
  transfers_.count(*meeting);
  log_.append("complete", rank, first.op, &group, static_cast<std::int64_t>(meeting->sequence()));
  // Before the ranks wake: a rank would otherwise find its memory in use after it has dropped its tensors.
  meeting->release_participants();
  calls_.end_meeting(*meeting, error);
}

// Fails the run first, so that this error is recorded as its cause: a rank that woke earlier could throw a
// consequence of it.
void Rendezvous::fail(Meeting& meeting, const std::exception_ptr& error) {
  failures_.fail(error);
  calls_.end_meeting(meeting, error);
}

// A corruption with a value changes a contribution and is applied before the computation; one with a bit
// changes a result and is applied after it.
std::exception_ptr Rendezvous::run(const Compute& compute, const Meeting& meeting,
                                   const std::vector<Corruption>& corruptions) const {
  const auto corrupt = [&](bool before) {
    for (const auto& corruption : corruptions) {
      if (corruption.value.has_value() == before)
        options_.corrupt(meeting.participants()[corruption.member], corruption);
    }
  };
  try {
    corrupt(/*before=*/true);
    compute(meeting.participants());
    corrupt(/*before=*/false);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace accel::sim
