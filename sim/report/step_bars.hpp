#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"

/// Plans which ranks share a bar, without pixels. Thread rule: any thread.
namespace accel::sim::report {

/// A stacked bar: the mean step of one or more ranks.
struct StepBar {
  std::string label;  ///< shown below the bar if there is room
  std::string name;   ///< "ranks 8-15"
  StepBreakdown mean;
  int slowest = -1;  ///< of several ranks, the one that computes longest; -1 for one rank
  double slowest_compute = 0;
};

/// Returns one bar per rank if there are at most `most` ranks, else one bar per 2, 4, 8, ... neighbouring ranks.
std::vector<StepBar> plan_bars(const std::vector<StepBreakdown>& ranks, std::size_t most);

/// Returns one bar per point of a sweep; compute is the part of a step that is neither communication nor waiting.
std::vector<StepBar> plan_bars(const std::vector<ScalePoint>& scaling);

/// Returns the mean over ranks.
StepBreakdown mean_of(const std::vector<StepBreakdown>& ranks);

inline double total(const StepBreakdown& step) {
  return step.compute + step.exposed_communication + step.straggler_wait;
}

}  // namespace accel::sim::report
