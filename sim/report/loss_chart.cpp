// The loss by step. Steps that are not finite are shown as a band instead of a gap in the line, which readers
// overlook. All work is bounded by the width in pixels, so a million steps cost no more than a thousand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/report/charts.hpp"
#include "sim/report/loss_curve.hpp"
#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

struct Axes {
  Scale steps, losses;
  bool is_logarithmic;
};

// Falls back to 0..1 if no loss can be drawn, so that a run of NaNs still gets axes.
Interval extent_of(const std::vector<double>& losses) {
  Interval extent{1e300, -1e300};
  for (const auto loss : losses) {
    if (is_drawable(loss)) extent = {std::min(extent.low, loss), std::max(extent.high, loss)};
  }
  return extent.low <= extent.high ? extent : Interval{0, 1};
}

// A logarithmic axis from a factor of 50 on: losses that differ by orders of magnitude look equal on a linear one.
Axes axes_of(const std::vector<double>& losses, const Box& plot) {
  const auto extent = extent_of(losses);
  const bool is_logarithmic = extent.low > 0 && extent.high > 50 * extent.low;
  const auto domain = is_logarithmic ? Interval{extent.low / 1.1, extent.high * 1.1} : rounded_out(extent, 5);
  const auto last_step = std::max<double>(1, static_cast<double>(losses.size()) - 1);
  return {Scale({0, last_step}, {plot.left, plot.right}),
          Scale(domain, {plot.bottom, plot.top}, is_logarithmic ? Scale::Kind::kLogarithmic : Scale::Kind::kLinear),
          is_logarithmic};
}

std::string gap_name(const std::vector<double>& losses, StepRange gap) {
  if (gap.last - gap.first == 1) return fmt::format("step {}: {}", gap.first, number_text(losses[gap.first]));
  return fmt::format("steps {} to {}: not finite", gap.first, gap.last - 1);
}

// Short, because a narrow chart has little room beside it.
std::string tick_text(double loss) { return std::abs(loss) < 9999.5 ? number_text(loss) : fmt::format("{:.3g}", loss); }

void draw_gaps(Svg& svg, const Box& plot, const Axes& axes, const std::vector<double>& losses,
               std::size_t steps_per_pixel) {
  double free_from = plot.left;  // left edge of the next free space for a name
  for (const auto& gap : ranges_of(losses, /*drawable=*/false, steps_per_pixel)) {
    const auto left = axes.steps(static_cast<double>(gap.first)), right = axes.steps(static_cast<double>(gap.last - 1));
    svg.box({left - 1, plot.top, right + 1, plot.bottom}, "gap", gap_name(losses, gap));
    // A name at the right edge is written to the left of its band.
    const bool is_last = left + 36 > plot.right;
    if ((is_last ? left - 36 : left) < free_from) continue;
    svg.text({is_last ? left - 4 : left + 6, plot.top + 12}, is_last ? "end gap-name" : "gap-name",
             number_text(losses[gap.first]));
    free_from = left + 36;
  }
}

void draw_range(Svg& svg, const Axes& axes, const std::vector<double>& losses, StepRange range,
                std::size_t steps_per_pixel) {
  const auto place = [&](std::size_t step, double loss) {
    return Point{axes.steps(static_cast<double>(step)), axes.losses(loss)};
  };
  if (range.last - range.first == 1) return svg.dot(place(range.first, losses[range.first]), 2.5, "loss-dot");
  // The thin line keeps extremes; the bold mean is sampled at every second pixel.
  const auto width = mean_width(losses.size()), parts = (range.last - range.first) / steps_per_pixel + 1;
  std::vector<Point> points;
  for (const auto step : thinned(losses, range, parts)) points.push_back(place(step, losses[step]));
  svg.polyline(points, width > 1 ? "loss faint" : "loss");
  if (width == 1) return;
  points.clear();
  const auto means = moving_mean(losses, range, width);
  for (std::size_t index = 0; index < means.size(); ++index) {
    const bool is_due = index % (2 * steps_per_pixel) == 0 || index + 1 == means.size();
    if (is_due && is_drawable(means[index])) points.push_back(place(range.first + index, means[index]));
  }
  svg.polyline(points, "loss");
}

std::string description_of(const std::vector<double>& losses) {
  const auto extent = extent_of(losses);
  return fmt::format("Loss of rank 0 over {}, from {} to {}; lowest {}, highest {}.",
                     plural(static_cast<std::int64_t>(losses.size()), "step"), number_text(losses.front()),
                     number_text(losses.back()), number_text(extent.low), number_text(extent.high));
}

}  // namespace

std::string loss_chart(const std::vector<double>& losses, const Canvas& canvas) {
  const double height = canvas.is_narrow() ? 240 : 320;
  Svg svg({canvas.id, "Loss by step", description_of(losses), canvas.width, height});
  const auto plot = plot_of(canvas, height);
  const auto axes = axes_of(losses, plot);
  draw_value_axis(svg, plot, axes.losses, axes.is_logarithmic ? "loss (logarithmic)" : "loss", tick_text);
  for (const auto tick : axes.steps.ticks(canvas.is_narrow() ? 4 : 8)) {
    // Steps are whole numbers; a short run may have ticks between them.
    if (tick == static_cast<double>(static_cast<std::int64_t>(tick)))
      draw_label(svg, plot, axes.steps(tick), count_text(static_cast<std::int64_t>(tick)));
  }
  const auto steps_per_pixel = 1 + losses.size() / static_cast<std::size_t>(plot.right - plot.left);
  draw_gaps(svg, plot, axes, losses, steps_per_pixel);
  for (const auto& range : ranges_of(losses, /*drawable=*/true, steps_per_pixel))
    draw_range(svg, axes, losses, range, steps_per_pixel);
  draw_base(svg, plot, "step");
  return svg.finish();
}

}  // namespace accel::sim::report
