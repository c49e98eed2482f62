#pragma once

#include "bench/rows.hpp"

namespace accel::bench {

/// Rows of a step of a character-level transformer of 12 layers on 8 simulated ranks, under DDP and fully sharded.
Rows sharded_rows();

}  // namespace accel::bench
