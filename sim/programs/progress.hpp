#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace accel::programs {

/// A progress bar on a descriptor: share done, rate, loss, time left. Redrawn at most ten times a second.
///
/// Thread rule: one thread (rank 0's).
class Progress {
 public:
  /// `descriptor` negative: draws nothing.
  Progress(int descriptor, std::int64_t total_steps) : descriptor_(descriptor), total_steps_(total_steps) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether it is time to draw again, so that nobody computes a loss for nothing.
  [[nodiscard]] bool is_due() const;
  /// `samples`: of one step over all ranks.
  void show(std::int64_t steps_done, std::int64_t samples_done, double loss);
  /// Replaces the bar by a line of text.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  int descriptor_;
  std::int64_t total_steps_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_ = Clock::time_point{};
  bool drawn_ = false;
};

}  // namespace accel::programs
