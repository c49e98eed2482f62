#pragma once

#include <functional>
#include <string>

#include "sim/report/scale.hpp"
#include "sim/report/svg.hpp"

/// What charts have in common. Thread rule: any thread.
namespace accel::sim::report {

/// How wide a chart is drawn. Letters keep their size, so a narrow chart has fewer of them.
struct Canvas {
  std::string id;
  double width = 0;
  [[nodiscard]] bool is_narrow() const { return width < 500; }
};

using TickText = std::function<std::string(double)>;

/// Where the data goes on a picture of that height: room for numbers on the left and below, and for a line above.
Box plot_of(const Canvas& canvas, double height);

/// Grid lines with their numbers, from left to right, and what they count above them.
void draw_value_axis(Svg& svg, const Box& plot, const Scale& scale, const std::string& name, const TickText& text);
/// One label below the plot; labels are drawn by the chart, which knows how many there is room for.
void draw_label(Svg& svg, const Box& plot, double x, const std::string& words);
/// The line that the data stands on, and what it counts.
void draw_base(Svg& svg, const Box& plot, const std::string& name);

}  // namespace accel::sim::report
