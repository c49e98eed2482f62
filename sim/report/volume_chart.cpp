#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

constexpr double kRow = 46, kBar = 16;

// What has no room loses its end; the tooltip has all of it. Bytes of one letter (UTF-8) stay together.
std::string shortened(const std::string& words, std::size_t most) {
  if (words.size() <= most) return words;
  auto size = most - 1;
  while (size > 0 && (static_cast<unsigned char>(words[size]) & 0xC0) == 0x80) --size;
  return words.substr(0, size) + "…";
}

std::string numbers_of(const CommunicationVolume& volume, bool is_narrow) {
  const auto calls = plural(volume.calls, "call");
  return is_narrow ? fmt::format("{}, {}", bytes_text(static_cast<double>(volume.bytes)), calls)
                   : fmt::format("{} in {}, {}", bytes_text(static_cast<double>(volume.bytes)), calls,
                                 seconds_text(volume.seconds));
}

}  // namespace

std::string volume_chart(const std::vector<CommunicationVolume>& volumes, const Canvas& canvas) {
  std::int64_t largest = 1;
  for (const auto& volume : volumes) largest = std::max(largest, volume.bytes);
  const Scale bytes({0, static_cast<double>(largest)}, {0, canvas.width - 2});
  Svg svg({canvas.id, "Communication by operation",
           fmt::format("{}; the largest sent {}.", plural(static_cast<std::int64_t>(volumes.size()), "operation"),
                       bytes_text(static_cast<double>(largest))),
           canvas.width, kRow * static_cast<double>(volumes.size())});
  double top = 0;
  for (const auto& volume : volumes) {
    const auto numbers = numbers_of(volume, canvas.is_narrow());
    const auto room = static_cast<std::size_t>(canvas.width / 7.5) - std::min<std::size_t>(numbers.size(), 30);
    svg.text({0, top + 13}, "name", shortened(volume.op, room));
    svg.text({canvas.width, top + 13}, "end", numbers);
    svg.box({0, top + 20, canvas.width, top + 20 + kBar}, "track");
    svg.box({0, top + 20, std::max(2.0, bytes(static_cast<double>(volume.bytes))), top + 20 + kBar}, "volume",
            fmt::format("{}: {}", volume.op, numbers_of(volume, false)));
    top += kRow;
  }
  return svg.finish();
}

}  // namespace accel::sim::report
