#pragma once

#include <functional>
#include <optional>

#include "sim/programs/comparison/recorder.hpp"

namespace accel::programs {

/// The shared memory that makes this process one rank of a simulated run: `sim-run --processes` sets its variables.
struct ProcessRank {
  int descriptor = -1, rank = 0;
};
/// Null if this process is not such a rank.
std::optional<ProcessRank> read_process_rank();

/// Runs this process as that rank. Its error goes to the simulator, which prints it. Returns the exit code.
int run_process_rank(const ProcessRank& simulated, const RecordOptions& record, const std::function<int()>& train);

}  // namespace accel::programs
