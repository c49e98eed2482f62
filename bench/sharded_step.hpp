#pragma once

#include "bench/rows.hpp"

namespace accel::bench {

/// Rows of a step of a character-level transformer of 12 layers on 8 simulated ranks, under DDP, fully sharded, and
/// elastic with 8 logical ranks.
Rows sharded_rows();

}  // namespace accel::bench
