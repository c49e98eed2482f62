#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"

/// A sweep over numbers of ranks by a program of the user's own: each run is a process, so the points of those before
/// are in a file.
namespace accel::programs {

/// A line more for this point. Throws ConfigError if the file cannot be written.
void add_sweep_point(const std::string& path, const sim::ScalePoint& point);

/// None of a file that is not there. Throws ConfigError if a line is no point.
std::vector<sim::ScalePoint> read_sweep(const std::string& path);

}  // namespace accel::programs
