// Predicts the time of an optimizer step from a simulated run, on the virtual clock or the wall clock. An optimizer
// update, not a micro-batch, is the unit, so that runs with different gradient accumulation remain comparable.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/report/quantity.hpp"

namespace accel::programs {
namespace {

// Returns the steps left after dropping the slowest and the fastest quarter. A mean over all steps would include
// warm-up and evaluation; a median would jump between bimodal steps. A step lasts until its last rank ends it, so all
// ranks are averaged over the same steps.
std::vector<std::size_t> middle_steps(const std::vector<sim::RankTimes>& times, std::size_t num_updates) {
  // A step counts as ended when its slowest rank has ended it.
  const auto end_of = [&](std::size_t update) {
    double latest = 0;
    for (const auto& rank : times) latest = std::max(latest, rank.updates[update].now);
    return latest;
  };
  std::vector<std::size_t> steps(num_updates - 1);
  std::iota(steps.begin(), steps.end(), 1);
  std::vector<double> seconds(num_updates);
  for (const auto step : steps) seconds[step] = end_of(step) - end_of(step - 1);
  // Stable, so that equal durations, which are common on a virtual clock, select the same steps on every machine.
  std::stable_sort(steps.begin(), steps.end(), [&](auto a, auto b) { return seconds[a] < seconds[b]; });
  const auto quarter = steps.size() / 4;
  return {steps.begin() + static_cast<std::ptrdiff_t>(quarter), steps.end() - static_cast<std::ptrdiff_t>(quarter)};
}

}  // namespace

Prediction predict(const std::vector<sim::RankTimes>& times) {
  Prediction prediction{.ranks = static_cast<int>(times.size())};
  std::size_t num_updates = times.empty() ? 0 : times.front().updates.size();
  for (const auto& rank : times) num_updates = std::min(num_updates, rank.updates.size());
  // The first update only marks where the first measurable step begins.
  if (num_updates < 2) return prediction;
  const auto steps = middle_steps(times, num_updates);
  const auto num_steps = static_cast<double>(steps.size());
  for (const auto& rank : times) {
    sim::StepBreakdown own;
    for (const auto step : steps) {
      const auto &from = rank.updates[step - 1], &to = rank.updates[step];
      own.compute += (to.compute - from.compute) / num_steps;
      own.exposed_communication += (to.exposed_communication - from.exposed_communication) / num_steps;
      own.straggler_wait += (to.straggler_wait - from.straggler_wait) / num_steps;
      prediction.step_seconds += (to.now - from.now) / num_steps / prediction.ranks;
    }
    prediction.mean.compute += own.compute / prediction.ranks;
    prediction.mean.exposed_communication += own.exposed_communication / prediction.ranks;
    prediction.mean.straggler_wait += own.straggler_wait / prediction.ranks;
    prediction.by_rank.push_back(own);
  }
  // Efficiency cannot exceed 1, but rounding of the means can push the quotient slightly above it.
  prediction.efficiency =
      prediction.step_seconds > 0 ? std::min(1.0, prediction.mean.compute / prediction.step_seconds) : 0;
  return prediction;
}

// A step time of 0 occurs with a network without costs; throughput is then reported as unknown.
sim::ScalePoint scale_point(const Prediction& prediction, double samples_per_step) {
  const double step = prediction.step_seconds;
  return {.ranks = prediction.ranks,
          .step_seconds = step,
          .efficiency = prediction.efficiency,
          .exposed_communication_seconds = prediction.mean.exposed_communication,
          .straggler_seconds = prediction.mean.straggler_wait,
          .samples_per_second = step > 0 ? samples_per_step / step : 0};
}

std::string describe(const std::vector<Prediction>& predictions) {
  using sim::report::seconds_text;
  std::string table, missing;
  for (const auto& one : predictions) {
    if (!one.is_known()) {
      missing += fmt::format(
          "no prediction for {} ranks: the run made fewer than two optimizer steps; train for more steps\n", one.ranks);
      continue;
    }
    const auto& mean = one.mean;
    table += fmt::format("{:>6} {:>12} {:>9.1f} % {:>12} {:>23} {:>16}\n", one.ranks, seconds_text(one.step_seconds),
                         100 * one.efficiency, seconds_text(mean.compute), seconds_text(mean.exposed_communication),
                         seconds_text(mean.straggler_wait));
  }
  if (table.empty()) return missing;
  return fmt::format("{:>6} {:>12} {:>11} {:>12} {:>23} {:>16}\n", "ranks", "step", "efficiency", "compute",
                     "exposed communication", "straggler wait") +
         table + missing;
}

}  // namespace accel::programs
