#include "sim/report/quantity.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <span>

namespace accel::sim::report {
namespace {

struct Unit {
  double size;
  const char* name;
};

// Uses the largest unit that gives at least 1 after rounding, so that 999.6 MB becomes 1 GB and not 1e+03 MB.
// Units are sorted by size.
std::string in_units(double value, std::span<const Unit> units) {
  auto unit = units.begin();
  while (std::next(unit) != units.end() && std::abs(value) >= 0.9995 * std::next(unit)->size) ++unit;
  return fmt::format("{} {}", number_text(value / unit->size), unit->name);
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const auto size = std::abs(value);
  // Three significant digits would print 1234 as 1.23e+03.
  if (size >= 999.5 && size < 1e7) return count_text(std::llround(value));
  return fmt::format("{:.3g}", value);
}

std::string seconds_text(double seconds) {
  static constexpr Unit kUnits[] = {{1e-9, "ns"}, {1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}};
  return seconds == 0 ? "0 s" : in_units(seconds, kUnits);
}

std::string bytes_text(double bytes) {
  static constexpr Unit kUnits[] = {{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}, {1e15, "PB"}};
  return in_units(bytes, kUnits);
}

std::string count_text(std::int64_t count) {
  auto digits = fmt::format("{}", count);
  for (auto place = static_cast<std::int64_t>(digits.size()) - 3; place > (count < 0 ? 1 : 0); place -= 3)
    digits.insert(static_cast<std::size_t>(place), ",");
  return digits;
}

// One decimal below 10 %, where differences of a few tenths matter.
std::string percent_text(double share) {
  const auto percent = 100 * share;
  return fmt::format("{:.{}f} %", percent, percent != 0 && std::abs(percent) < 9.95 ? 1 : 0);
}

std::string plural(std::int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count_text(count), noun, count == 1 ? "" : "s");
}

}  // namespace accel::sim::report
