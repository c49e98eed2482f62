#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"
#include "sim/report/scale.hpp"

/// The pictures of the page, each for the width of its canvas. What they are given is not empty and checked.
/// Thread rule: any thread.
namespace accel::sim::report {

/// The loss by step: each step thin, their moving mean bold if there are many; a band where a loss is not finite.
std::string loss_chart(const std::vector<double>& losses, const Canvas& canvas);

/// The parts of a step, stacked: a bar for each rank or, where that is too narrow, for some ranks next to each other;
/// then their mean, with a mark at the compute of the slowest.
std::string rank_chart(const std::vector<StepBreakdown>& ranks, const Canvas& canvas);
/// How many bars that has room for.
std::size_t most_bars(const Canvas& canvas);

/// Bytes by operation, the largest first.
std::string volume_chart(const std::vector<CommunicationVolume>& volumes, const Canvas& canvas);

/// Efficiency by number of ranks, beside the ideal.
std::string efficiency_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas);

/// The parts of a step by number of ranks, stacked.
std::string scaled_step_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas);

}  // namespace accel::sim::report
