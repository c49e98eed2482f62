#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sim/programs/check/check.hpp"
#include "sim/programs/check/runs.hpp"
#include "sim/report/quantity.hpp"

namespace accel::programs {

// A prediction, not a judgement: no number here is wrong.
CheckResult judge_scaling(Runs& runs) {
  static_cast<void>(runs.base());
  std::vector<sim::ScalePoint> points;
  const std::vector<int> counts = runs.is_quick() ? std::vector{1, 8} : std::vector{1, 2, 4, 8, 16, 32, 64};
  for (const int ranks : counts) {
    const auto& run = runs.get({.ranks = ranks, .max_steps = 6, .network = runs.network().text});
    if (!run.has_ended_well()) throw CannotJudge{fmt::format("on {} ranks of the network: {}", ranks, failure_of(run))};
    if (run.prediction) points.push_back(*run.prediction);
  }
  if (points.empty()) throw CannotJudge{"the program makes fewer than two optimizer steps"};
  std::vector<std::string> steps;
  for (const auto& point : points)
    steps.push_back(fmt::format("{} on {}", sim::report::seconds_text(point.step_seconds), point.ranks));
  const auto& last = points.back();
  const auto compute = last.step_seconds - last.exposed_communication_seconds - last.straggler_seconds;
  const std::array costs{std::pair(compute, "computing"),
                         std::pair(last.exposed_communication_seconds, "communication that nothing hides"),
                         std::pair(last.straggler_seconds, "waiting for the slowest rank")};
  const auto& largest = *std::max_element(costs.begin(), costs.end());
  return {.text = fmt::format(
              "predicted step on {}: {} ranks; efficiency {:.0f} % on {}, where most of the time is {} ({:.0f} %)",
              runs.network().name, fmt::join(steps, ", "), last.efficiency * 100, last.ranks, largest.second,
              100 * largest.first / last.step_seconds)};
}

}  // namespace accel::programs
