#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "reference/tracking/progress.hpp"

namespace accel::programs {

/// sim-run's bar: accel::ProgressBar with samples per second and the loss, on a descriptor.
///
/// Thread rule: one thread (rank 0's).
class Progress {
 public:
  /// `descriptor` negative: draws nothing.
  Progress(int descriptor, std::int64_t total_steps);

  /// Whether the next step may be drawn, so that nobody computes a loss for nothing.
  [[nodiscard]] bool is_due() const { return bar_ && bar_->is_due(); }
  /// What is shown with the next step. `samples_done`: over all ranks.
  void show(std::int64_t samples_done, double loss);
  void step();

 private:
  std::unique_ptr<terminal::Terminal> own_;
  std::optional<ProgressBar> bar_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace accel::programs
