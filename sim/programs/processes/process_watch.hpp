#pragma once

#include <sys/types.h>

#include <optional>

namespace accel::programs {

/// Watches a process that is not a child of this one.
///
///     ProcessWatch watch(pid);
///     if (const auto status = watch.status()) area.record_end(rank, *status);
///
/// Thread rule: one thread.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Returns the status of wait() once the process has ended. It is 0 if its parent has read it already and the kernel
  /// (before Linux 6.15) does not keep it.
  [[nodiscard]] std::optional<int> status() const;

 private:
  const pid_t pid_;
  const int descriptor_;  // -1: the process had ended before
};

/// Ends what the processes of this one have left behind and waits for it. This process must be their subreaper.
/// `grace_ms`: how long they may take to end themselves.
void end_adopted_processes(int grace_ms);

}  // namespace accel::programs
