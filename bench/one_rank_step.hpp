#pragma once

#include <nlohmann/json.hpp>

#include "bench/step_jobs.hpp"

namespace accel::bench {

/// A training step over plain LibTorch and through Accelerator, in turn; the ratio is of times.
nlohmann::ordered_json measure_one_rank(const Data& data, const Job& job, int rounds);

}  // namespace accel::bench
