// Stacked bars of a step's parts, by rank or by number of ranks.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/charts.hpp"
#include "sim/report/quantity.hpp"
#include "sim/report/step_bars.hpp"

namespace accel::sim::report {
namespace {

constexpr double kWidestBar = 56;

std::string tooltip_of(const StepBar& bar, const char* part, double seconds) {
  auto words = fmt::format("{}: {} {} of {}", bar.name, seconds_text(seconds), part, seconds_text(total(bar.mean)));
  if (bar.slowest >= 0)
    words += fmt::format(" (mean); slowest compute {} on rank {}", seconds_text(bar.slowest_compute), bar.slowest);
  return words;
}

// Parts are stacked from below; an empty part draws nothing, so that it has no tooltip.
void draw_bar(Svg& svg, const StepBar& bar, const Scale& seconds, Interval place) {
  double base = 0;
  const auto draw_part = [&](double part, const char* style, const char* name) {
    const auto overlap = base > 0 ? 0.5 : 0;  // overlaps the part below by half a pixel, so that scaling shows no gap
    if (part > 0)
      svg.box({place.low, seconds(base + part), place.high, seconds(base) + overlap}, style,
              tooltip_of(bar, name, part));
    base += part;
  };
  draw_part(bar.mean.compute, "compute", "compute");
  draw_part(bar.mean.exposed_communication, "exposed", "exposed communication");
  draw_part(bar.mean.straggler_wait, "waiting", "waiting for stragglers");
  if (bar.slowest >= 0) {
    const auto y = seconds(bar.slowest_compute);
    svg.line({place.low, y}, {place.high, y}, "slowest");
  }
}

// Returns the distance of labels in bars: the smallest power of two at which the widest label fits.
std::size_t label_stride(const std::vector<StepBar>& bars, double slot) {
  std::size_t longest = 1, stride = 1;
  for (const auto& bar : bars) longest = std::max(longest, bar.label.size());
  while (static_cast<double>(stride) * slot < 7.5 * static_cast<double>(longest) + 10) stride *= 2;
  return stride;
}

std::string draw(const std::vector<StepBar>& bars, const Canvas& canvas, const char* title, const char* base_name) {
  const double height = canvas.is_narrow() ? 240 : 300;
  // The slowest rank's mark may be above its bar's mean, so it counts for the height as well.
  double highest = 1e-9;  // an axis must not be empty
  for (const auto& bar : bars) highest = std::max({highest, total(bar.mean), bar.slowest_compute});
  Svg svg({canvas.id, title,
           fmt::format("{}; the longest takes {}. The table below has the numbers.",
                       plural(static_cast<std::int64_t>(bars.size()), "bar"), seconds_text(highest)),
           canvas.width, height});
  const auto plot = plot_of(canvas, height);
  const Scale seconds(rounded_out({0, highest}, 5), {plot.bottom, plot.top});
  draw_value_axis(svg, plot, seconds, "time per step", seconds_text);
  const auto slot = (plot.right - plot.left) / static_cast<double>(bars.size());
  // Narrow bars touch each other; wider ones leave gaps, up to a maximum width.
  const auto half = std::min(kWidestBar, slot * (slot < 12 ? 1.0 : 0.72)) / 2;
  const auto stride = label_stride(bars, slot);
  for (std::size_t index = 0; index < bars.size(); ++index) {
    const auto middle = plot.left + slot * (static_cast<double>(index) + 0.5);
    draw_bar(svg, bars[index], seconds, {middle - half, middle + half});
    if (index % stride == 0) draw_label(svg, plot, middle, bars[index].label);
  }
  draw_base(svg, plot, base_name);
  return svg.finish();
}

}  // namespace

// A bar of less than 5.5 pixels cannot be distinguished from its neighbours, nor be hit by a pointer.
std::size_t max_bars(const Canvas& canvas) {
  const auto plot = plot_of(canvas, 0);
  return static_cast<std::size_t>((plot.right - plot.left) / 5.5);
}

std::string rank_chart(const std::vector<StepBreakdown>& ranks, const Canvas& canvas) {
  return draw(plan_bars(ranks, max_bars(canvas)), canvas, "Time per step by rank", "rank");
}

std::string scaled_step_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas) {
  return draw(plan_bars(scaling), canvas, "Time per step by number of ranks", "ranks");
}

}  // namespace accel::sim::report
