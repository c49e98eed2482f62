#pragma once

#include <cstddef>
#include <vector>

/// What there is to draw of the losses of a run: plans, without pixels. Thread rule: any thread.
namespace accel::sim::report {

/// Steps from `first` up to but without `last`.
struct StepRange {
  std::size_t first = 0, last = 0;
};

/// Whether a loss has a place on an axis. (What is close to the largest double has none: the axis itself would
/// overflow.)
bool is_drawable(double loss);

/// The longest ranges of steps whose losses are all drawable, or none of them; those with fewer than `least_gap` other
/// steps between them are one.
std::vector<StepRange> ranges_of(const std::vector<double>& losses, bool drawable, std::size_t least_gap = 1);

/// At most 2 * `parts` steps of the range, which look the same: the lowest and the highest drawable of each part, in
/// order.
std::vector<std::size_t> thinned(const std::vector<double>& losses, StepRange range, std::size_t parts);

/// For each step of the range the mean over what is drawable of it and up to `width` / 2 neighbours on either side,
/// fewer near the range's ends; NaN where nothing is.
std::vector<double> moving_mean(const std::vector<double>& losses, StepRange range, std::size_t width);

/// The width of a mean that makes so many steps readable; 1 where they are without.
std::size_t mean_width(std::size_t num_steps);

}  // namespace accel::sim::report
