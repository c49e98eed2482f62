#pragma once

#include <functional>
#include <memory>

#include "sim/programs/processes/supervisor.hpp"
#include "sim/programs/rehearsal/rehearsal.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"

namespace accel::programs {

/// Runs a program on simulated ranks that are processes, with everything that the request asks for. Returns sim-run's
/// exit code, or that of a program which ended before its ranks started. Throws ConfigError.
int run_process_ranks(RankProgram program, const SimRequest& request);

/// Like run_process_ranks, for ranks that another process starts: `descriptor` is its SharedArea, of request.ranks
/// ranks. If the environment has no ACCEL_STARTER, each rank is a process of its own that has told its number in the
/// area; the simulator then detaches itself and ends when they have ended or left.
int attach_to_ranks(int descriptor, const SimRequest& request);

/// Starts the ranks of a run for the first time (0) or again; returns when they are ready.
using StartRanks = std::function<std::unique_ptr<Supervisor>(int restart_count)>;

/// Runs the engine over ranks that are processes.
sim::SimulationReport run_ranks_as_processes(const Rehearsal& rehearsal, int num_ranks, const StartRanks& start);

}  // namespace accel::programs
