#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"
#include "sim/report/scale.hpp"

/// The charts of the page, each for the width of its canvas. Inputs must be checked and not empty.
/// Thread rule: any thread.
namespace accel::sim::report {

/// Draws the loss by step: single steps thin, their moving mean bold if there are many, and a band where a loss is not
/// finite.
std::string loss_chart(const std::vector<double>& losses, const Canvas& canvas);

/// Draws the parts of a step, stacked: one bar per rank or, if there is too little room, per group of neighbouring
/// ranks, with their mean and a mark at the compute of the slowest.
std::string rank_chart(const std::vector<StepBreakdown>& ranks, const Canvas& canvas);
/// Returns the number of bars that fit.
std::size_t max_bars(const Canvas& canvas);

/// Draws the bytes by operation, in the given order.
std::string volume_chart(const std::vector<CommunicationVolume>& volumes, const Canvas& canvas);

/// Draws the efficiency by number of ranks, with the ideal.
std::string efficiency_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas);

/// Draws the parts of a step by number of ranks, stacked.
std::string scaled_step_chart(const std::vector<ScalePoint>& scaling, const Canvas& canvas);

}  // namespace accel::sim::report
