// Reduces long curves to what a chart can show. All functions are linear in the number of steps.
#include "sim/report/loss_curve.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace accel::sim::report {

bool is_drawable(double loss) { return std::abs(loss) < 1e300; }

std::vector<StepRange> ranges_of(const std::vector<double>& losses, bool drawable, std::size_t least_gap) {
  std::vector<StepRange> ranges;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    if (is_drawable(losses[step]) != drawable) continue;
    if (ranges.empty() || step - ranges.back().last >= std::max<std::size_t>(1, least_gap))
      ranges.push_back({step, step});
    ranges.back().last = step + 1;
  }
  return ranges;
}

// Keeps extremes instead of every n-th step: a single spike must stay visible at any width.
std::vector<std::size_t> thinned(const std::vector<double>& losses, StepRange range, std::size_t parts) {
  const auto size = range.last - range.first;
  std::vector<std::size_t> steps;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto end = range.first + size * (part + 1) / parts;
    std::optional<std::size_t> lowest, highest;
    for (auto step = range.first + size * part / parts; step < end; ++step) {
      if (!is_drawable(losses[step])) continue;
      if (!lowest || losses[step] < losses[*lowest]) lowest = step;
      if (!highest || losses[step] > losses[*highest]) highest = step;
    }
    if (!lowest) continue;
    steps.push_back(std::min(*lowest, *highest));
    if (*lowest != *highest) steps.push_back(std::max(*lowest, *highest));
  }
  return steps;
}

std::vector<double> moving_mean(const std::vector<double>& losses, StepRange range, std::size_t width) {
  // Prefix sums make the mean linear in the number of steps, whatever the width.
  std::vector<double> sums{0}, counts{0};
  for (auto step = range.first; step < range.last; ++step) {
    sums.push_back(sums.back() + (is_drawable(losses[step]) ? losses[step] : 0));
    counts.push_back(counts.back() + (is_drawable(losses[step]) ? 1 : 0));
  }
  const auto size = range.last - range.first;
  std::vector<double> means;
  for (std::size_t step = 0; step < size; ++step) {
    // Symmetric, so that the mean of a slope is not shifted; but at least width / 8, or the ends would be
    // single noisy steps.
    const auto reach = std::max(width / 8, std::min({width / 2, step, size - 1 - step}));
    const auto first = step - std::min(reach, step), last = std::min(step + reach + 1, size);
    means.push_back((sums[last] - sums[first]) / (counts[last] - counts[first]));
  }
  return means;
}

// Odd, so that the window is symmetric.
std::size_t mean_width(std::size_t num_steps) {
  return num_steps < 60 ? 1 : std::max<std::size_t>(5, num_steps / 40) | 1;
}

}  // namespace accel::sim::report
