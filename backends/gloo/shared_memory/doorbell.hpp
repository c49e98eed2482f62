#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

/// Where one thread of a process sleeps until another process has something for it.
///
///     bell.sleep_unless([&] { return has_come(); }, 1s);
///
/// Thread rule: one sleeper at a time; anyone rings.
namespace accel::gloo {

// Note [No lost wake-up]
// Who rings counts up and then looks for a sleeper; who sleeps says so and then lets the kernel compare the count with
// the one seen before it looked around. Both are sequentially consistent, so either the ringer sees the sleeper and
// wakes it, or the kernel sees another count and does not put it to sleep. What came before the ring is published by
// it.
struct Doorbell {
  alignas(64) std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  [[nodiscard]] std::uint32_t count() const { return rings.load(std::memory_order_seq_cst); }

  /// A system call only if somebody sleeps.
  void ring();

  /// Looks, and sleeps if that gives false. Who rings while it looks is not missed.
  template <typename Look>
  void sleep_unless(Look&& look, std::chrono::nanoseconds timeout) {
    const auto seen = count();
    if (!look()) sleep(seen, timeout);
  }

  /// Returns when somebody has rung since `count()` gave `seen`, at the latest after `timeout`; perhaps before.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds timeout);
};

}  // namespace accel::gloo
