#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "reference/core/thread_safety.hpp"

// Note [Completion]
// `state_` holds a bit "has ended" and, above it, the number of ranks that wait: a waiter adds itself and blocks unless
// the bit was there, and who sets the bit learns how many it wakes. No lock is taken on this path.
namespace accel::sim {

/// Called once when it has ended: with null if it ended well.
using OnEnd = std::function<void(std::exception_ptr)>;
/// The error that each rank sees.
using RankErrors = std::function<std::exception_ptr(int rank)>;

/// The end of something that ranks wait for: whether it has ended, with which error, and who is to be woken.
///
///     if (completion.claim(error)) {              // who ends it
///       const int num_waiters = completion.set_ended();
///       completion.notify();
///       if (num_waiters > 0) completion.wake_waiters();
///     }
///     if (completion.add_waiter()) completion.sleep();   // a rank
///
/// Thread rule: any thread.
class Completion {
 public:
  [[nodiscard]] bool has_ended() const { return (state_.load(std::memory_order_acquire) & kEnded) != 0; }
  /// What `rank` sees, -1: none of the ranks. Null unless it ended in an error for it.
  [[nodiscard]] std::exception_ptr error(int rank) const;
  /// Calls `on_end` once it has ended, on whatever thread ends it; at once if it has.
  void when_ended(OnEnd on_end);

  // --- for who ends it ---
  /// True for the first caller alone, which then ends it with this error.
  bool claim(const std::exception_ptr& error, RankErrors rank_errors = nullptr);
  /// Returns the number of ranks that wait, which the caller wakes.
  int set_ended();
  /// Calls what `when_ended` has registered.
  void notify();
  void wake_waiters() const;
  /// Ends what nobody waits for yet.
  void end_at_once(RankErrors rank_errors = nullptr);

  // --- for a rank that waits ---
  /// False if it has ended: then the rank is not counted as waiting.
  bool add_waiter() { return (state_.fetch_add(kOneWaiter, std::memory_order_acq_rel) & kEnded) == 0; }
  /// Returns when it has ended.
  void sleep() const;

 private:
  static constexpr std::uint32_t kEnded = 1, kOneWaiter = 2;

  std::atomic<bool> is_claimed_{false};
  std::exception_ptr error_;  // written once, by who has claimed it, before `state_` says that it has ended
  RankErrors rank_errors_;    // as `error_`
  std::atomic<std::uint32_t> state_{0};
  Mutex mutex_;
  std::vector<OnEnd> on_end_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
