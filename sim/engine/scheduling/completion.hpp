#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "reference/core/thread_safety.hpp"

// Note [Completion]
// `state_` holds the bit "has ended" and, above it, the number of waiting ranks. A waiter adds itself and
// blocks unless the bit was set; the thread that sets the bit learns in the same operation how many ranks it
// must wake. No lock is taken, because thousands of ranks wait for one collective.
namespace accel::sim {

/// Called once when the completion has ended: with null if it ended without an error.
using OnEnd = std::function<void(std::exception_ptr)>;
/// Returns the error that a rank sees.
using RankErrors = std::function<std::exception_ptr(int rank)>;

/// Something that ranks wait for: whether it has ended, with which error, and who must be woken.
///
///     if (completion.claim(error)) {              // the thread that ends it
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
  /// Returns the error that `rank` sees (-1: no particular rank); null unless it ended in an error for that rank.
  [[nodiscard]] std::exception_ptr error(int rank) const;
  /// Calls `on_end` when the completion ends, on the thread that ends it; immediately if it has ended.
  void when_ended(OnEnd on_end);

  // --- for the thread that ends it ---
  /// Returns true for the first caller only, which must then end it with this error.
  bool claim(const std::exception_ptr& error, RankErrors rank_errors = nullptr);
  /// Marks it as ended. Returns the number of waiting ranks, which the caller must wake.
  int set_ended();
  /// Calls the functions that `when_ended` has registered.
  void notify();
  void wake_waiters() const;
  /// Claims and ends a completion that no rank waits for yet.
  void complete_immediately(RankErrors rank_errors = nullptr);

  // --- for a rank that waits ---
  /// Returns false if it has ended: the rank is then not counted as waiting.
  bool add_waiter() { return (state_.fetch_add(kOneWaiter, std::memory_order_acq_rel) & kEnded) == 0; }
  /// Stops waiting. Returns false if it has ended: the rank was then counted as waiting.
  bool remove_waiter();
  /// Blocks until it has ended.
  void sleep() const;

 private:
  static constexpr std::uint32_t kEnded = 1, kOneWaiter = 2;

  std::atomic<bool> is_claimed_{false};
  std::exception_ptr error_;  // written once by the claiming thread, before `state_` is set
  RankErrors rank_errors_;    // like `error_`
  std::atomic<std::uint32_t> state_{0};
  Mutex mutex_;
  std::vector<OnEnd> on_end_ ACCEL_GUARDED_BY(mutex_);
};

/// Blocks a rank's thread until the completion has ended, or something else makes the rank stop waiting.
using SleepUntilEnded = std::function<void(int rank, const Completion& completion)>;

}  // namespace accel::sim
