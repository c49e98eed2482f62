#include "bench/with_unit.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace accel::bench {

std::string with_unit(double value, const std::string& unit) {
  struct Scale {
    double factor;
    const char* name;
  };
  static constexpr std::array<Scale, 4> kSeconds = {{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  static constexpr std::array<Scale, 4> kBytes = {{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}}};
  for (const auto& scale : unit == "s" ? kSeconds : kBytes) {
    if (std::abs(value) >= scale.factor) return fmt::format("{:.4g} {}", value / scale.factor, scale.name);
  }
  return fmt::format("{:.4g} {}", value, unit);
}

}  // namespace accel::bench
