#include "sim/report/axes.hpp"

namespace accel::sim::report {

Box plot_of(const Canvas& canvas, double height) {
  return {canvas.is_narrow() ? 56.0 : 64.0, 26, canvas.width - 12, height - 40};
}

void draw_value_axis(Svg& svg, const Box& plot, const Scale& scale, const std::string& name, const TickText& text) {
  for (const auto tick : scale.ticks(5)) {
    const auto y = scale(tick);
    svg.line({plot.left, y}, {plot.right, y}, "grid");
    svg.text({plot.left - 8, y + 4}, "end", text(tick));
  }
  svg.text({0, 12}, "start", name);
}

void draw_label(Svg& svg, const Box& plot, double x, const std::string& words) {
  svg.text({x, plot.bottom + 17}, "middle", words);
}

void draw_base(Svg& svg, const Box& plot, const std::string& name) {
  svg.line({plot.left, plot.bottom}, {plot.right, plot.bottom}, "axis");
  svg.text({plot.right, plot.bottom + 34}, "end", name);
}

}  // namespace accel::sim::report
