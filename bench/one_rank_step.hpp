#pragma once

#include <memory>

#include "bench/rows.hpp"
#include "bench/step_jobs.hpp"

namespace accel::bench {

/// Rows of a training step on one rank, through the Accelerator and in plain LibTorch.
Rows one_rank_rows(const std::shared_ptr<const Data>& data);

}  // namespace accel::bench
