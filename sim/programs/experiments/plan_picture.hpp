#pragma once

#include <string>
#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

/// A plan for a person. A duplicate is marked wherever a sample is issued again in an epoch.
namespace accel::programs {

/// A table per epoch: a line per step, a column per rank; duplicates carry a star.
std::string plan_table(const std::vector<PlanEpoch>& epochs);

/// The same as a picture (SVG): a row per rank, a box per sample, coloured by its number; duplicates are framed in red.
std::string plan_svg(const std::vector<PlanEpoch>& epochs);

}  // namespace accel::programs
