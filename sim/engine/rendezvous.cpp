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

std::shared_ptr<Meeting> Rendezvous::arrive(Group& group, int group_rank, Call call, Participant participant,
                                            const Compute& compute) {
  const int rank = group.ranks[group_rank];
  auto& state = *group.state;
  calls_.begin(rank);
  const auto sequence = state.collectives.num_joined(group_rank);
  faults_.before_call(rank, group, sequence, call);
  calls_.announce(
      rank, "arrive",
      {.op = call.op, .group = &group, .sequence = static_cast<std::int64_t>(sequence), .where = call.where});
  if (state.connection.is_broken()) return failed_meeting(group, std::move(call));
  auto meeting = state.collectives.next(group, group_rank, {options_.timeout, options_.keeps_time()});
  if (!meeting) return failed_meeting(group, std::move(call));  // the connection was broken meanwhile

  const bool is_last = meeting->join(group_rank, std::move(call), std::move(participant), clocks_.ready(rank));
  if (is_last) complete(meeting, rank, compute);
  calls_.end(rank);
  return meeting;
}

// Every member has arrived and only this one acts: the slots are its own from here on.
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
    return fail(*meeting, std::current_exception());  // of a model, not of the program: for all
  }
  if (faults.error) return calls_.end_meeting(*meeting, nullptr, faults.error);
  if (faults.is_lost) return failures_.keep_until_end(meeting);
  const auto error = run(compute, *meeting, faults.corruptions);
  transfers_.count(*meeting);
  log_.append("complete", rank, first.op, &group, static_cast<std::int64_t>(meeting->sequence()));
  calls_.end_meeting(*meeting, error);
  meeting->release_participants();  // buffers are not kept longer than the collective
}

// The run fails before the others wake: they leave, and the first failure is the run's.
void Rendezvous::fail(Meeting& meeting, const std::exception_ptr& error) {
  failures_.fail(error);
  calls_.end_meeting(meeting, error);
}

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
