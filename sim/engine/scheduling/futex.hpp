#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

/// As std::atomic's wait and notify, which in libstdc++ give up the processor four times before they sleep: with many
/// more ranks than cores each time another rank runs a whole step, and this one comes back to cold caches only to give
/// up again.
///
///     while (!is_done(state = word.load())) sleep_while(word, state);   // a rank
///     word |= kDone; wake_all(word);                                    // who ends its wait
///
/// Thread rule: any thread; the word outlives its sleepers.
namespace accel::sim {

/// Returns once `word` is seen to differ from `value`. A change that nobody tells of by `wake_all` may go unnoticed.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  while (word.load(std::memory_order_acquire) == value)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

/// Everybody who sleeps on `word` looks at it again.
inline void wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace accel::sim
