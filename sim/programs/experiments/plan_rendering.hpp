#pragma once

#include <string>
#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

/// Formats a plan for people. Every repeated read of a sample within an epoch is marked as a duplicate.
namespace accel::programs {

/// Returns a table per epoch, with a line per step and a column per rank. Duplicates are marked by a star.
std::string plan_table(const std::vector<PlanEpoch>& epochs);

/// Returns the same as an SVG image: a row per rank and a box per sample, colored by its number. Duplicates have a red
/// frame.
std::string plan_svg(const std::vector<PlanEpoch>& epochs);

}  // namespace accel::programs
