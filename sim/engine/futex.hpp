#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

// As std::atomic's wait and notify, which give up the processor four times before they sleep: with many more ranks than cores
// each time another rank runs a whole step, and this one comes back to cold caches only to give up again.
namespace accel::sim {

/// Returns when `word` no longer holds `value`, of which who changes it tells by `wake_all`.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  while (word.load(std::memory_order_acquire) == value) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void wake_all(const std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace accel::sim
