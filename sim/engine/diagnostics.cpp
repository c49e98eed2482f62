// Takes the state of the job from blocked ranks and open meetings, which the pure functions of reference/diagnosis
// explain. It runs while other ranks may still move (a time-out), so it reads each fact once and tolerates that a
// missing rank has arrived since.
#include "sim/engine/diagnostics.hpp"

#include <algorithm>

#include "reference/diagnosis/diagnose.hpp"
#include "sim/engine/group_state.hpp"

namespace accel::sim {
namespace {

OpenCall open_call_of(const Meeting& meeting) {
  const auto& group = meeting.group();
  OpenCall open{
      .group = group.name, .members = group.ranks, .sequence = meeting.sequence(), .is_message = meeting.is_message()};
  if (open.is_message) {
    open.peer = meeting.peer() < 0 ? -1 : group.ranks[meeting.peer()];
    open.calls = meeting.calls();
    return open;
  }
  open.calls.resize(group.ranks.size());
  for (std::size_t member = 0; member < group.ranks.size(); ++member) {
    if (meeting.has_arrived(member)) open.calls[member] = meeting.calls()[member];
  }
  return open;
}

// Adds a meeting, once, and returns its place among the open calls.
class OpenCalls {
 public:
  explicit OpenCalls(JobState& job) : job_(job) {}

  std::size_t add(const Meeting& meeting) {
    const auto known = std::find(meetings_.begin(), meetings_.end(), &meeting);
    if (known != meetings_.end()) return known - meetings_.begin();
    const auto& group = meeting.group();
    job_.open_calls.push_back(open_call_of(meeting));
    if (auto apart = group.state->collectives.first_divergence())
      job_.lines_apart.insert({group.name, {apart->sequence, std::move(apart->calls)}});
    meetings_.push_back(&meeting);
    return meetings_.size() - 1;
  }

 private:
  JobState& job_;
  std::vector<const Meeting*> meetings_;
};

}  // namespace

Diagnosis diagnose_difference(const Meeting& meeting) { return accel::diagnose_difference(open_call_of(meeting)); }

// After a failure turns no longer matter: every rank runs freely, so a rank that has not returned is running.
RankState Diagnostics::rank_state(int rank) const {
  auto state = states_.state(rank);
  if (state.activity == Activity::kRuns && !failures_.has_failed() && !scheduler_.has_turn(rank))
    state.activity = Activity::kWaitsForTurn;
  return state;
}

std::string Diagnostics::describe_rank(int rank) const { return describe(rank_state(rank)); }

std::vector<RankState> Diagnostics::rank_states() const {
  std::vector<RankState> ranks;
  for (int rank = 0; rank < states_.num_ranks(); ++rank) ranks.push_back(rank_state(rank));
  return ranks;
}

Diagnosis Diagnostics::hang() const {
  JobState job{.ranks = rank_states()};
  OpenCalls calls(job);
  for (const auto& wait : states_.waits()) {
    if (!wait.meeting->has_group()) continue;  // an injected hang
    job.open_calls[calls.add(*wait.meeting)].waiters.push_back(wait.rank);
  }
  return diagnose_hang(job, "hang: every rank is blocked or has ended; none can continue");
}

Diagnosis Diagnostics::timeout(const Meeting& meeting) const {
  JobState job{.ranks = rank_states()};
  OpenCalls(job).add(meeting);
  for (const auto& wait : states_.waits()) {
    if (wait.meeting == &meeting) job.open_calls.front().waiters.push_back(wait.rank);
  }
  return diagnose_late_call(job, 0, fmt::format("timed out after {} ms", timeout_.count()));
}

// No meeting can be late here: the other ranks have not made their calls because they wait for their turns.
Diagnosis Diagnostics::stalled_turn(int rank) const {
  const auto text = fmt::format("timed out after {} ms\n  rank {} does not end its turn: it {}", timeout_.count(), rank,
                                describe_rank(rank));
  return {.kind = Diagnosis::Kind::kTimeout, .ranks = {rank}, .text = text};
}

}  // namespace accel::sim
