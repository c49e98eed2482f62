#pragma once

#include <string>

#include "bench/rows.hpp"

namespace accel::bench {

/// Rows of the same experiments here and under Accelerate, in seconds per step: the mlp at batch 32 on one rank, the
/// same on 2 and 4 processes over Gloo, and language models of four sizes on one rank. `python` is a command that runs
/// bench/accelerate_training.py; without one there are no rows.
Rows python_rows(const std::string& python);

}  // namespace accel::bench
