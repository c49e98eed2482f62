#pragma once

#include <cstddef>
#include <vector>

/// Plans for drawing the losses of a run, without pixels. Thread rule: any thread.
namespace accel::sim::report {

/// The steps from `first` up to, but not including, `last`.
struct StepRange {
  std::size_t first = 0, last = 0;
};

/// Returns whether a loss can be drawn on an axis. Values close to the largest double cannot: the axis would overflow.
bool is_drawable(double loss);

/// Returns the maximal ranges of steps whose losses are all drawable, or all not drawable. Ranges with fewer than
/// `least_gap` other steps between them are merged.
std::vector<StepRange> ranges_of(const std::vector<double>& losses, bool drawable, std::size_t least_gap = 1);

/// Returns at most 2 * `parts` steps of the range that look like all of it: the lowest and the highest drawable step of
/// each part, in order.
std::vector<std::size_t> thinned(const std::vector<double>& losses, StepRange range, std::size_t parts);

/// Returns for each step of the range the mean of the drawable losses among it and up to `width` / 2 neighbours on
/// either side, fewer near the ends; NaN if none is drawable.
std::vector<double> moving_mean(const std::vector<double>& losses, StepRange range, std::size_t width);

/// Returns the width of the mean that makes this many steps readable; 1 if they are readable without one.
std::size_t mean_width(std::size_t num_steps);

}  // namespace accel::sim::report
