#pragma once

#include <string>

#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {

/// Writes and prints everything that the request asks for about a run of a user's program, as `program: text`, to
/// standard error: standard output belongs to the program. Returns the exit code.
int report_run(const Rehearsal& rehearsal, const SimRequest& request, const sim::SimulationReport& report,
               const std::string& program);

}  // namespace accel::programs
