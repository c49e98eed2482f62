#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "sim/programs/rehearsal/rehearsal.hpp"

namespace accel {
struct RankContext;
}

namespace accel::programs {

/// Runs the body on simulated ranks that are threads of this process, as the rehearsal asks for.
sim::SimulationReport run_threads(const Rehearsal& rehearsal, std::chrono::milliseconds timeout,
                                  const std::function<void(RankContext&)>& body);

/// Like run_threads, but ends the process if ranks do not return after a failure, after writing the rehearsal's files
/// and printing the error as `program: text`.
sim::SimulationReport run_threads_or_exit(const Rehearsal& rehearsal, const std::string& program,
                                          std::chrono::milliseconds timeout,
                                          const std::function<void(RankContext&)>& body);

}  // namespace accel::programs
