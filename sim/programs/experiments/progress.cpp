#include "sim/programs/experiments/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace accel::programs {

Progress::Progress(int descriptor, std::int64_t total_steps) {
  if (descriptor < 0) return;
  if (descriptor != STDERR_FILENO) own_ = std::make_unique<terminal::Terminal>(descriptor);
  bar_.emplace(own_ ? *own_ : terminal::Terminal::standard_error(), total_steps,
               ProgressOptions{.desc = "train", .unit = "step"});
}

void Progress::show(std::int64_t samples_done, double loss) {
  if (!bar_) return;
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  bar_->set_postfix(
      fmt::format("{:.0f} samples/s, loss {:.4f}", static_cast<double>(samples_done) / std::max(seconds, 1e-9), loss));
}

void Progress::step() {
  if (bar_) bar_->update();
}

}  // namespace accel::programs
