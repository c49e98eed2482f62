// Note [Turns]
// In a serial schedule exactly one rank has the turn. It gives the turn away only inside the engine's calls, so
// everything that a rank does between two calls is atomic, and a run is determined by the policy's choices.
// Each rank sleeps on its own word: passing the turn wakes one thread, not all of them.
#include "sim/engine/scheduling/rank_turns.hpp"

#include <algorithm>

#include "reference/core/system/futex.hpp"

namespace accel::sim {

RankTurns::RankTurns(const RankSchedule& options, int num_ranks, std::function<void()> on_quiescent)
    : policy_(make_turn_policy(options, num_ranks)),
      on_quiescent_(std::move(on_quiescent)),
      states_(num_ranks, State::kAbsent),
      turns_(num_ranks) {}

// The first turn is given when all ranks have begun; otherwise the order in which the threads started would decide.
void RankTurns::begin(int rank) {
  bool all_begun = false;
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kRunnable;
    all_begun = ++num_begun_ == static_cast<int>(states_.size());
  }
  if (all_begun) give(choose(/*current=*/-1));
  await_turn(rank);
}

// A rank that makes real progress ends the current round of polling.
void RankTurns::yield(int rank) {
  if (abandoned_) return;
  {
    const MutexLock lock(mutex_);
    polling_.clear();
  }
  pass_turn(rank);
}

void RankTurns::pass_turn(int rank) {
  const int next = choose(rank);
  if (next == rank) return;
  give(next);
  await_turn(rank);
}

// Demoting the poller and releasing a postponed rank keeps a polling loop from starving the rank that it waits for.
void RankTurns::poll(int rank) {
  if (abandoned_) return;
  policy_->demote(rank);
  release_postponed_for(rank);
  pass_turn(rank);
}

// If every runnable rank only polls, the event they poll for may have to come from a postponed rank, so one of
// those becomes runnable.
void RankTurns::release_postponed_for(int polling) {
  const MutexLock lock(mutex_);
  polling_.insert(polling);
  for (int rank = 0; rank < static_cast<int>(states_.size()); ++rank) {
    if (states_[rank] == State::kRunnable && !polling_.contains(rank)) return;
  }
  const auto postponed = std::find(states_.begin(), states_.end(), State::kPostponed);
  if (postponed != states_.end()) *postponed = State::kRunnable;
  polling_.clear();
}

void RankTurns::block(int rank) {
  {
    const MutexLock lock(mutex_);
    if (!abandoned_) states_[rank] = State::kBlocked;
  }
  pass(rank);
  await_turn(rank);
}

void RankTurns::postpone(int rank) {
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kPostponed;
  }
  yield(rank);
}

// The rank does not wait for another turn, so its thread can end.
void RankTurns::leave(int rank) {
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kLeft;
  }
  pass(rank);
}

// Does not pass the turn: the woken rank runs when the policy chooses it.
void RankTurns::wake(int rank) {
  const MutexLock lock(mutex_);
  if (states_[rank] == State::kBlocked) states_[rank] = State::kRunnable;
}

// Gives every rank its turn; from then on the words stay set and `await_turn` returns at once.
void RankTurns::abandon() {
  abandoned_ = true;
  for (std::size_t rank = 0; rank < turns_.size(); ++rank) give(static_cast<int>(rank));
}

// The only place where the policy is asked. Ranks are listed in order, so the choice depends on the seed and
// the states alone. Postponed ranks run only if no other rank can.
int RankTurns::choose(int current) {
  const MutexLock lock(mutex_);
  std::vector<int> runnable, postponed;
  for (int rank = 0; rank < static_cast<int>(states_.size()); ++rank) {
    if (states_[rank] == State::kRunnable) runnable.push_back(rank);
    if (states_[rank] == State::kPostponed) postponed.push_back(rank);
  }
  int next = -1;
  if (!runnable.empty()) {
    next = policy_->next(runnable, current);
  } else if (!postponed.empty()) {
    next = postponed.front();
    states_[next] = State::kRunnable;
  }
  holder_ = {next, std::chrono::steady_clock::now()};
  return next;
}

RankTurns::Holder RankTurns::holder() {
  const MutexLock lock(mutex_);
  return holder_;
}

// For a rank that cannot continue. If no rank can, the hang is resolved here, on the thread of the last holder,
// which may wake ranks with an error.
void RankTurns::pass(int from) {
  if (abandoned_) return;
  int next = choose(from);
  if (next < 0 && any_rank_is_blocked()) {
    on_quiescent_();
    next = choose(from);
  }
  if (next >= 0) give(next);
}

bool RankTurns::any_rank_is_blocked() {
  const MutexLock lock(mutex_);
  return std::find(states_.begin(), states_.end(), State::kBlocked) != states_.end();
}

// Only one rank waits on this word, so waking all sleepers wakes one thread.
void RankTurns::give(int rank) {
  turns_[rank].given.store(1, std::memory_order_release);
  wake_all(turns_[rank].given);
}

void RankTurns::await_turn(int rank) {
  auto& given = turns_[rank].given;
  sleep_while(given, 0);
  given.exchange(0, std::memory_order_acq_rel);
  if (abandoned_)
    given.store(1, std::memory_order_release);  // keep it set: `abandon` may have set it just before the exchange
}

}  // namespace accel::sim
