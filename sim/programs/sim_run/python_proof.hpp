#pragma once

#include <string>
#include <vector>

#include "sim/programs/layouts/disagreement.hpp"
#include "sim/programs/sim_run/commands.hpp"

namespace accel::programs {

/// Compares the recordings of a Python program by package simranks, with the interpreter of `command`: the run in
/// folder `mesh` under the layout, and that on one rank in `one`. Throws Error if it fails.
LayoutComparison compare_python_runs(const std::vector<std::string>& command, const std::string& one,
                                     const std::string& mesh, const ParallelismConfig& layout);

/// Which axes a Python program on one rank has asked for the sizes of. `one`: its recording.
std::vector<std::string> axes_read(const RankRecording& one);

}  // namespace accel::programs
