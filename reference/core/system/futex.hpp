#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <optional>

/// Waits on a 32-bit word, like std::atomic's wait and notify, but also between processes, with a time limit, and
/// without libstdc++'s spinning: it yields the processor four times before it sleeps. With many more ranks than cores,
/// each yield lets another rank run a complete step, and the spinning rank returns to cold caches only to yield again.
///
///     while (!is_done(state = word.load())) sleep_while(word, state);   // a rank
///     word |= kDone; wake_all(word);                                    // the thread that ends its wait
///
/// Thread rule: any thread. The word must outlive its sleepers.
namespace accel {

enum class FutexScope {
  kThreads = FUTEX_PRIVATE_FLAG,  ///< of one process
  kProcesses = 0                  ///< the word is in memory that they share
};

/// Blocks while `word` is `value`, at most for `limit`. May return early, for example for a signal.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value, FutexScope scope,
                       std::optional<std::chrono::nanoseconds> limit = std::nullopt) {
  static_assert(sizeof(word) == sizeof(std::uint32_t), "the kernel's futex operates on the bare 32-bit word");
  timespec relative{};
  if (limit) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*limit);
    relative = {.tv_sec = seconds.count(), .tv_nsec = (*limit - seconds).count()};
  }
  syscall(SYS_futex, &word, FUTEX_WAIT | static_cast<int>(scope), value, limit ? &relative : nullptr, nullptr, 0);
}

/// Wakes all that wait on `word`; they then read it again.
inline void futex_wake(const std::atomic<std::uint32_t>& word, FutexScope scope) {
  syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), INT_MAX, nullptr, nullptr, 0);
}

/// Blocks until `word` differs from `value`. A change without a following `wake_all` may go unnoticed.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  while (word.load(std::memory_order_acquire) == value) futex_wait(word, value, FutexScope::kThreads);
}
inline void wake_all(const std::atomic<std::uint32_t>& word) { futex_wake(word, FutexScope::kThreads); }

}  // namespace accel
