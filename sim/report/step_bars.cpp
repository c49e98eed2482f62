// Groups ranks into bars. A page of 4,096 ranks has 153 bars at most, on a phone 49.
#include "sim/report/step_bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "sim/report/quantity.hpp"

namespace accel::sim::report {
namespace {

StepBreakdown mean_of_some(std::span<const StepBreakdown> ranks) {
  StepBreakdown sum;
  for (const auto& rank : ranks) {
    sum.compute += rank.compute;
    sum.exposed_communication += rank.exposed_communication;
    sum.straggler_wait += rank.straggler_wait;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  return {sum.compute / count, sum.exposed_communication / count, sum.straggler_wait / count};
}

// A bar of several ranks shows their mean, which hides a straggler, so it also records the slowest rank.
StepBar bar_of(const std::vector<StepBreakdown>& ranks, std::size_t first, std::size_t size) {
  const auto some = std::span(ranks).subspan(first, std::min(size, ranks.size() - first));
  StepBar bar{.label = fmt::format("{}", first), .name = fmt::format("rank {}", first), .mean = mean_of_some(some)};
  if (some.size() == 1) return bar;
  const auto slowest =
      std::max_element(some.begin(), some.end(), [](const auto& a, const auto& b) { return a.compute < b.compute; });
  bar.name = fmt::format("ranks {}-{}", first, first + some.size() - 1);
  bar.slowest = static_cast<int>(first + static_cast<std::size_t>(slowest - some.begin()));
  bar.slowest_compute = slowest->compute;
  return bar;
}

}  // namespace

std::vector<StepBar> plan_bars(const std::vector<StepBreakdown>& ranks, std::size_t most) {
  std::size_t size = 1;
  // Powers of two, so that bars match nodes of 2, 4 or 8 ranks.
  while ((ranks.size() + size - 1) / size > most) size *= 2;
  std::vector<StepBar> bars;
  for (std::size_t first = 0; first < ranks.size(); first += size) bars.push_back(bar_of(ranks, first, size));
  return bars;
}

// Rounding may make the parts exceed the step by a little; a bar with negative compute could not be drawn.
std::vector<StepBar> plan_bars(const std::vector<ScalePoint>& scaling) {
  std::vector<StepBar> bars;
  for (const auto& point : scaling) {
    const auto compute =
        std::max(0.0, point.step_seconds - point.exposed_communication_seconds - point.straggler_seconds);
    bars.push_back({.label = count_text(point.ranks),
                    .name = plural(point.ranks, "rank"),
                    .mean = {compute, point.exposed_communication_seconds, point.straggler_seconds}});
  }
  return bars;
}

StepBreakdown mean_of(const std::vector<StepBreakdown>& ranks) { return mean_of_some(ranks); }

}  // namespace accel::sim::report
