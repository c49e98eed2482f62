#include "reference/terminal/log_lines.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>

#include "reference/terminal/terminal.hpp"

namespace accel::terminal {
namespace {

constexpr std::array<const char*, 5> kLevels{"debug", "info", "warning", "error", "critical"};

}  // namespace

void LogLines::write(int level, const std::string& text) const {
  if (!should_log(level)) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S", &local);
  Terminal::standard_error().write_line(fmt::format("{},{:03} - {} - {} - {}", time.data(), milliseconds % 1000,
                                                    kLevels.at(static_cast<std::size_t>(level)), name_, text));
}

}  // namespace accel::terminal
