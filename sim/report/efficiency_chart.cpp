// Efficiency by number of ranks: a curve with a dashed line at the ideal.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

// Numbers of ranks usually double from point to point, so their axis is logarithmic.
Scale ranks_scale(const std::vector<ScalePoint>& scaling, const Box& plot) {
  const double first = scaling.front().ranks, last = scaling.back().ranks;
  // A single point is centred: a domain of one value would have no width.
  const Interval domain = first == last ? Interval{first / 2, last * 2} : Interval{first, last};
  return {domain, {plot.left + 20, plot.right - 20}, Scale::Kind::kLogarithmic};
}

// At least 1, so that the ideal is always on the chart; superlinear efficiencies extend it.
double highest_efficiency(const std::vector<ScalePoint>& scaling) {
  double highest = 1;
  for (const auto& point : scaling) highest = std::max(highest, point.efficiency);
  return highest;
}

}  // namespace

std::string efficiency_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas) {
  const double height = canvas.is_narrow() ? 240 : 300;
  const auto& last = scaling.back();
  Svg svg({canvas.id, "Efficiency by number of ranks",
           fmt::format("{} of the ideal on {}.", percent_text(last.efficiency), plural(last.ranks, "rank")),
           canvas.width, height});
  const auto plot = plot_of(canvas, height);
  const auto ranks = ranks_scale(scaling, plot);
  const Scale efficiency(rounded_out({0, highest_efficiency(scaling)}, 5), {plot.bottom, plot.top + 12});
  draw_value_axis(svg, plot, efficiency, "efficiency", percent_text);
  svg.line({plot.left, efficiency(1)}, {plot.right, efficiency(1)}, "ideal");
  std::vector<Point> points;
  for (const auto& point : scaling) points.push_back({ranks(point.ranks), efficiency(point.efficiency)});
  if (points.size() > 1) svg.polyline(points, "efficiency");
  double free_from = plot.left - 100;  // left edge of the next free space for a label
  for (std::size_t index = 0; index < points.size(); ++index) {
    const auto& point = scaling[index];
    svg.dot(
        points[index], 4, "efficiency-dot",
        fmt::format(
            "{}: {}, {} per step{}", plural(point.ranks, "rank"), percent_text(point.efficiency),
            seconds_text(point.step_seconds),
            point.samples_per_second > 0 ? fmt::format(", {} samples/s", number_text(point.samples_per_second)) : ""));
    if (points[index].x < free_from) continue;
    svg.text({points[index].x, points[index].y - 10}, "middle value", percent_text(point.efficiency));
    draw_label(svg, plot, points[index].x, count_text(point.ranks));
    free_from = points[index].x + 46;
  }
  draw_base(svg, plot, "ranks");
  return svg.finish();
}

}  // namespace accel::sim::report
