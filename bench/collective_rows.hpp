#pragma once

#include <string>

#include "bench/rows.hpp"

namespace accel::bench {

/// Rows "OPERATION/BACKEND/RANKS_ranks/SIZE" of simulated collectives, beside real Gloo between threads of one process
/// (over TCP), plain copies of the same bytes on one core, and PyTorch's MultiThreadedPG if `python` is a command that
/// runs bench/threaded_group.py. Bandwidths are those of nccl-tests.
Rows collective_rows(const std::string& python);

}  // namespace accel::bench
