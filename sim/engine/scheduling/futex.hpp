#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

/// Like std::atomic's wait and notify, but without libstdc++'s spinning: it yields the processor four times before it
/// sleeps. With many more ranks than cores, each yield lets another rank run a complete step, and the spinning rank
/// returns to cold caches only to yield again.
///
///     while (!is_done(state = word.load())) sleep_while(word, state);   // a rank
///     word |= kDone; wake_all(word);                                    // the thread that ends its wait
///
/// Thread rule: any thread. The word must outlive its sleepers.
namespace accel::sim {

/// Blocks until `word` differs from `value`. A change without a following `wake_all` may go unnoticed.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  while (word.load(std::memory_order_acquire) == value)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

/// Wakes all sleepers of `word`; they then read it again.
inline void wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace accel::sim
