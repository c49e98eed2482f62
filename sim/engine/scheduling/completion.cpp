// The end of a wait, without a lock on the path of the waiting ranks. See Note [Completion].
#include "sim/engine/scheduling/completion.hpp"

#include <utility>

#include "reference/core/system/futex.hpp"

namespace accel::sim {

std::exception_ptr Completion::error(int rank) const {
  if (!has_ended()) return nullptr;
  return rank_errors_ ? rank_errors_(rank) : error_;
}

// The check under the mutex pairs with `notify`, which takes the list under it after the bit is set: a callback
// is either found by `notify` or called here, never both and never neither. It runs without the mutex, because
// it is user code.
void Completion::when_ended(OnEnd on_end) {
  {
    const MutexLock lock(mutex_);
    if (!has_ended()) {
      on_end_.push_back(std::move(on_end));
      return;
    }
  }
  on_end(error(/*rank=*/-1));
}

// Claiming is separate from ending so that the winner can write the error before any rank can read it.
bool Completion::claim(const std::exception_ptr& error, RankErrors rank_errors) {
  if (is_claimed_.exchange(true)) return false;
  error_ = error;
  rank_errors_ = std::move(rank_errors);
  return true;
}

int Completion::set_ended() {
  return static_cast<int>(state_.fetch_or(kEnded, std::memory_order_acq_rel) / kOneWaiter);
}

void Completion::notify() {
  std::vector<OnEnd> on_end;
  {
    const MutexLock lock(mutex_);
    on_end.swap(on_end_);
  }
  for (const auto& call : on_end) call(error(/*rank=*/-1));
}

void Completion::wake_waiters() const { wake_all(state_); }

void Completion::complete_immediately(RankErrors rank_errors) {
  claim(nullptr, std::move(rank_errors));
  set_ended();
}

bool Completion::remove_waiter() {
  auto state = state_.load(std::memory_order_acquire);
  while ((state & kEnded) == 0) {
    if (state_.compare_exchange_weak(state, state - kOneWaiter, std::memory_order_acq_rel)) return true;
  }
  return false;
}

// Re-reads the state because waiters that add themselves change the word, which also wakes a futex sleeper.
void Completion::sleep() const {
  for (auto state = state_.load(std::memory_order_acquire); (state & kEnded) == 0;
       state = state_.load(std::memory_order_acquire)) {
    sleep_while(state_, state);
  }
}

}  // namespace accel::sim
