#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/report/markup.hpp"

/// From numbers to places on a picture, and the axes that tell of them. Thread rule: any thread.
namespace accel::sim::report {

struct Interval {
  double low = 0, high = 0;
};

class Scale {
 public:
  enum class Kind { kLinear, kLogarithmic };

  /// Maps `domain` to `range`, which may run backwards. The domain is finite, not empty, and positive if logarithmic.
  Scale(Interval domain, Interval range, Kind kind = Kind::kLinear);

  [[nodiscard]] double operator()(double value) const;
  /// Round numbers within the domain, about `count` of them; on a logarithmic scale powers of ten, or 1, 2, 5 times
  /// them.
  [[nodiscard]] std::vector<double> ticks(int count) const;
  [[nodiscard]] Interval range() const { return range_; }

 private:
  Interval domain_, range_;
  Kind kind_;
};

/// The round numbers around an interval, so that a linear axis begins and ends at a tick; where the interval is (next
/// to) empty, one around it.
Interval rounded_out(Interval interval, int tick_count);

// --- axes, which charts have in common ---

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
