#include "sim/report/sections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/markup.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

HtmlTable volume_table(const std::vector<CommunicationVolume>& volumes) {
  HtmlTable table{.columns = {"operation", "calls", "bytes", "time"}};
  for (const auto& volume : volumes)
    table.rows.push_back({volume.op, count_text(volume.calls), count_text(volume.bytes), seconds_text(volume.seconds)});
  return table;
}

}  // namespace

std::string volume_section(const RunReport& report) {
  if (report.volumes.empty()) return empty_section("communication", "Communication", "No communication was recorded.");
  auto volumes = report.volumes;
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
