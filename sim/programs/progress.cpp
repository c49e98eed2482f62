#include "sim/programs/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace accel::programs {
namespace {

constexpr int kWidth = 30;
constexpr auto kInterval = std::chrono::milliseconds(100);

void write_all(int descriptor, const std::string& text) { (void)!write(descriptor, text.data(), text.size()); }

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::~Progress() {
  if (descriptor_ >= 0 && drawn_) write_all(descriptor_, "\n");
}

bool Progress::is_due() const { return descriptor_ >= 0 && Clock::now() - last_ >= kInterval; }

void Progress::show(std::int64_t steps_done, std::int64_t samples_done, double loss) {
  if (descriptor_ < 0) return;
  last_ = Clock::now();
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(last_ - started_).count();
  const double share = total_steps_ > 0 ? std::min(1.0, static_cast<double>(steps_done) / static_cast<double>(total_steps_)) : 1.0;
  const int filled = static_cast<int>(share * kWidth);
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  write_all(descriptor_, fmt::format("\r\x1b[2K{:3.0f}% |{}{}| step {}/{}  {:.1f} steps/s  {:.0f} samples/s  loss {:.4f}  {} left", share * 100,
                                     std::string(filled, '#'), std::string(kWidth - filled, ' '), steps_done, total_steps_,
                                     steps_done / std::max(seconds, 1e-9), samples_done / std::max(seconds, 1e-9), loss, clock_text(left)));
}

void Progress::note(const std::string& text) {
  if (descriptor_ < 0) return;
  write_all(descriptor_, fmt::format("{}{}\n", drawn_ ? "\n" : "", text));
  drawn_ = false;
}

}  // namespace accel::programs
