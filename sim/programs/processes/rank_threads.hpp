#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backends/process/shared_area.hpp"
#include "reference/core/thread_safety.hpp"

namespace accel::programs {

/// The threads of a rank's process that make calls: whether one that does not wait in a call may continue.
///
///     threads.add(link.sender());                          // at each request
///     if (threads.all_wait(waiting)) block();              // only other ranks can continue this one
///     if (threads.have_been_idle(waiting)) block();        // no thread has done anything for a while
///
/// Thread rule: any thread.
class RankThreads {
 public:
  explicit RankThreads(const process::RankEnd& process) : process_(process) {}

  /// Records the sender of a request, which is a sign of life.
  void add(const process::Sender& sender);
  /// Whether every thread that has made a call or may make one is among those that wait.
  [[nodiscard]] bool all_wait(std::span<const pid_t> waiting);
  /// Whether the threads have used nearly no processor time for kIdleTime since the last request, and none of them ran,
  /// waited for a disk or, outside of a call, slept for a given time. Samples them; call it repeatedly.
  [[nodiscard]] bool have_been_idle(std::span<const pid_t> waiting);
  /// Whether a thread does one of these things now.
  [[nodiscard]] bool are_busy(std::span<const pid_t> waiting);

  static constexpr auto kIdleTime = std::chrono::seconds(5);

 private:
  using Clock = std::chrono::steady_clock;
  struct Sample {
    Clock::time_point time;
    double processor_seconds = 0;
    bool is_busy = false;
  };

  [[nodiscard]] bool is_busy(pid_t thread, std::span<const pid_t> waiting) const ACCEL_REQUIRES(mutex_);
  [[nodiscard]] bool is_any_busy(std::span<const pid_t> waiting) const ACCEL_REQUIRES(mutex_);

  const process::RankEnd& process_;
  Mutex mutex_;
  std::vector<pid_t> callers_ ACCEL_GUARDED_BY(mutex_);
  std::uint32_t num_threads_ ACCEL_GUARDED_BY(mutex_) = 1;  // as the process has reported them
  std::deque<Sample> samples_ ACCEL_GUARDED_BY(mutex_);     // since the last request
};

}  // namespace accel::programs
