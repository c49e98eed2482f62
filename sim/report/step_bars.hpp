#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"

/// Which ranks share a bar: a plan, without pixels. Thread rule: any thread.
namespace accel::sim::report {

/// A stacked bar: the mean step of one or more ranks.
struct StepBar {
  std::string label;  ///< below it, where there is room
  std::string name;   ///< "ranks 8-15"
  StepBreakdown mean;
  int slowest = -1;  ///< of several ranks the one that computes longest; -1 for a single one
  double slowest_compute = 0;
};

/// One bar a rank if there are at most `most` of them, else a bar for 2, 4, 8, ... ranks next to each other.
std::vector<StepBar> plan_bars(const std::vector<StepBreakdown>& ranks, std::size_t most);

/// A bar for each point of a sweep; what is left of a step beside communication and stragglers is compute.
std::vector<StepBar> plan_bars(const std::vector<ScalePoint>& scaling);

/// The mean over ranks.
StepBreakdown mean_of(const std::vector<StepBreakdown>& ranks);

inline double total(const StepBreakdown& step) {
  return step.compute + step.exposed_communication + step.straggler_wait;
}

}  // namespace accel::sim::report
