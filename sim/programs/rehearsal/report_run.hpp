#pragma once

#include <string>
#include <vector>

#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {

/// Writes and prints everything that the request asks for about a run of a user's program, as `program: text`, to
/// standard error: standard output belongs to the program. Returns the exit code.
int report_run(const Rehearsal& rehearsal, const SimRequest& request, const sim::SimulationReport& report,
               const std::string& program);

/// Appends one line for `point`. Throws ConfigError if the file cannot be written.
void add_sweep_point(const std::string& path, const sim::ScalePoint& point);
/// Returns no points if the file does not exist. Throws ConfigError if a line is not a point.
std::vector<sim::ScalePoint> read_sweep_points(const std::string& path);

}  // namespace accel::programs
