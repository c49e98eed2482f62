// Axes with round numbers. The tolerances of 1e-6 and 0.999999 absorb rounding: without them the last tick of
// an axis would appear or not, depending on the data.
#include "sim/report/scale.hpp"

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"

namespace accel::sim::report {
namespace {

// Returns the smallest 1, 2 or 5 times a power of ten that is at least span / count. The tolerance keeps a span
// that is a round number up to rounding from getting the next larger step.
double round_step(double span, int count) {
  const auto rough = span / count;
  const auto power = std::pow(10, std::floor(std::log10(rough)));
  for (const auto factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999999) return factor * power;
  }
  return 10 * power;
}

// Multiplies instead of adding, so that rounding errors do not accumulate; the bound of the loop guards against
// a step that is too small to change a large number.
std::vector<double> linear_ticks(Interval domain, int count) {
  const auto step = round_step(domain.high - domain.low, count);
  const auto first = std::ceil(domain.low / step - 1e-6);
  std::vector<double> ticks;
  for (int index = 0; index <= 2 * count && (first + index) * step <= domain.high + 1e-6 * step; ++index)
    ticks.push_back((first + index) * step + 0.0);  // turns -0 into 0
  return ticks;
}

std::vector<double> logarithmic_ticks(Interval domain, int count) {
  const int first = static_cast<int>(std::floor(std::log10(domain.low))),
            last = static_cast<int>(std::ceil(std::log10(domain.high)));
  // Over many decades only powers of ten are labelled, and if necessary only every few of them.
  const bool few = (last - first) * 3 <= 2 * count;
  const int stride = few ? 1 : std::max(1, (last - first) / count);
  std::vector<double> ticks;
  for (int exponent = first; exponent <= last; exponent += stride) {
    for (const auto factor : {1.0, 2.0, 5.0}) {
      const auto tick = factor * std::pow(10, exponent);
      if ((few || factor == 1) && tick >= domain.low * 0.999999 && tick <= domain.high * 1.000001)
        ticks.push_back(tick);
    }
  }
  return ticks;
}

// Never cuts within a UTF-8 character.
std::string shortened(const std::string& words, std::size_t most) {
  if (words.size() <= most) return words;
  auto size = most - 1;
  while (size > 0 && (static_cast<unsigned char>(words[size]) & 0xC0) == 0x80) --size;
  return words.substr(0, size) + "…";
}

}  // namespace

Scale::Scale(Interval domain, Interval range, Kind kind) : domain_(domain), range_(range), kind_(kind) {
  ensure(std::isfinite(domain.low) && std::isfinite(domain.high) && domain.low < domain.high,
         "got an axis from {} to {}; expected two finite, increasing numbers", domain.low, domain.high);
  ensure(kind == Kind::kLinear || domain.low > 0, "got a logarithmic axis from {}; expected a positive number",
         domain.low);
}

// Does not clamp: charts choose a domain that contains their data.
double Scale::operator()(double value) const {
  const auto share = kind_ == Kind::kLinear ? (value - domain_.low) / (domain_.high - domain_.low)
                                            : std::log(value / domain_.low) / std::log(domain_.high / domain_.low);
  return range_.low + share * (range_.high - range_.low);
}

std::vector<double> Scale::ticks(int count) const {
  return kind_ == Kind::kLinear ? linear_ticks(domain_, count) : logarithmic_ticks(domain_, count);
}

// `low / 2 + high / 2`: the sum of two large values could overflow.
Interval rounded_out(Interval interval, int tick_count) {
  const auto middle = interval.low / 2 + interval.high / 2;
  if (interval.high - interval.low <= 1e-9 * std::abs(middle)) {
    const auto margin = middle == 0 ? 1 : 0.1 * std::abs(middle);
    interval = {middle - margin, middle + margin};
  }
  const auto step = round_step(interval.high - interval.low, tick_count);
  return {std::floor(interval.low / step + 1e-6) * step, std::ceil(interval.high / step - 1e-6) * step};
}

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

Box draw_row(Svg& svg, const Canvas& canvas, double top, const std::string& name, const std::string& numbers) {
  const auto room = static_cast<std::size_t>(canvas.width / 7.5) - std::min<std::size_t>(numbers.size(), 30);
  svg.text({0, top + 13}, "name", shortened(name, room));
  svg.text({canvas.width, top + 13}, "end", numbers);
  return {0, top + 20, canvas.width, top + 36};
}

}  // namespace accel::sim::report
