#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/report/markup.hpp"

/// Maps numbers to positions in a picture and draws axes. Thread rule: any thread.
namespace accel::sim::report {

struct Interval {
  double low = 0, high = 0;
};

class Scale {
 public:
  enum class Kind { kLinear, kLogarithmic };

  /// Maps `domain` to `range`, which may be reversed. The domain is finite, not empty, and positive if logarithmic.
  Scale(Interval domain, Interval range, Kind kind = Kind::kLinear);

  [[nodiscard]] double operator()(double value) const;
  /// Returns about `count` round numbers within the domain; on a logarithmic scale powers of ten, or 1, 2, 5 times
  /// these.
  [[nodiscard]] std::vector<double> ticks(int count) const;
  [[nodiscard]] Interval range() const { return range_; }

 private:
  Interval domain_, range_;
  Kind kind_;
};

/// Extends an interval to round numbers, so that a linear axis begins and ends at a tick. An (almost) empty interval is
/// widened first.
Interval rounded_out(Interval interval, int tick_count);

// --- axes, which all charts share ---

/// The width of a chart. Letters keep their size, so a narrow chart has fewer labels.
struct Canvas {
  std::string id;
  double width = 0;
  [[nodiscard]] bool is_narrow() const { return width < 500; }
};

using TickText = std::function<std::string(double)>;

/// Returns the area of the data in a picture of this height; leaves room for numbers on the left and below, and for a
/// line above.
Box plot_of(const Canvas& canvas, double height);

/// Draws horizontal grid lines with their numbers, and the axis name above them.
void draw_value_axis(Svg& svg, const Box& plot, const Scale& scale, const std::string& name, const TickText& text);
/// Draws one label below the plot. The chart decides how many labels fit.
void draw_label(Svg& svg, const Box& plot, double x, const std::string& words);
/// Draws the base line of the plot and the name of the horizontal axis.
void draw_base(Svg& svg, const Box& plot, const std::string& name);

// --- horizontal bars, one per row ---

inline constexpr double kRowHeight = 46;
/// Draws the name and the numbers of the row that begins at `top`, and returns the area of its bar below them. A name
/// that does not fit beside the numbers is cut; a tooltip or table must have all of it.
Box draw_row(Svg& svg, const Canvas& canvas, double top, const std::string& name, const std::string& numbers);

}  // namespace accel::sim::report
