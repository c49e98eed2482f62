// Communication by operation: horizontal bars with their numbers, the largest first.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/sections.hpp"

namespace accel::sim::report {
namespace {

// The narrow chart leaves out the time; the tooltip and the table have it.
std::string numbers_of(const CommunicationVolume& volume, bool is_narrow) {
  const auto calls = plural(volume.calls, "call");
  return is_narrow ? fmt::format("{}, {}", bytes_text(static_cast<double>(volume.bytes)), calls)
                   : fmt::format("{} in {}, {}", bytes_text(static_cast<double>(volume.bytes)), calls,
                                 seconds_text(volume.seconds));
}

HtmlTable volume_table(const std::vector<CommunicationVolume>& volumes) {
  HtmlTable table{.columns = {"operation", "calls", "bytes", "time"}};
  for (const auto& volume : volumes)
    table.rows.push_back({volume.op, count_text(volume.calls), count_text(volume.bytes), seconds_text(volume.seconds)});
  return table;
}

}  // namespace

std::string volume_chart(const std::vector<CommunicationVolume>& volumes, const Canvas& canvas) {
  std::int64_t largest = 1;
  for (const auto& volume : volumes) largest = std::max(largest, volume.bytes);
  // Linear: on a logarithmic scale a negligible operation would look as large as the one that dominates.
  const Scale bytes({0, static_cast<double>(largest)}, {0, canvas.width - 2});
  Svg svg({canvas.id, "Communication by operation",
           fmt::format("{}; the largest sent {}.", plural(static_cast<std::int64_t>(volumes.size()), "operation"),
                       bytes_text(static_cast<double>(largest))),
           canvas.width, kRowHeight * static_cast<double>(volumes.size())});
  double top = 0;
  for (const auto& volume : volumes) {
    const auto bar = draw_row(svg, canvas, top, volume.op, numbers_of(volume, canvas.is_narrow()));
    svg.box(bar, "track");
    // At least two pixels, so that a small volume stays visible.
    svg.box({0, bar.top, std::max(2.0, bytes(static_cast<double>(volume.bytes))), bar.bottom}, "volume",
            fmt::format("{}: {}", volume.op, numbers_of(volume, false)));
    top += kRowHeight;
  }
  return svg.finish();
}

std::string volume_section(const RunReport& report) {
  if (report.volumes.empty()) return empty_section("communication", "Communication", "No communication was recorded.");
  auto volumes = report.volumes;
  // Stable, so that operations with equal bytes keep a fixed order and equal reports give equal pages.
  std::stable_sort(volumes.begin(), volumes.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::int64_t bytes = 0, calls = 0;
  for (const auto& volume : volumes) bytes += volume.bytes, calls += volume.calls;
  const auto picture = chart("communication", [&](const Canvas& canvas) { return volume_chart(volumes, canvas); });
  return section("communication", "Communication",
                 paragraph(fmt::format("All ranks together: {} in {}.", bytes_text(static_cast<double>(bytes)),
                                       plural(calls, "call"))) +
                     picture + folded_table("Communication as a table", volume_table(volumes)));
}

}  // namespace accel::sim::report
