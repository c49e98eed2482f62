#pragma once

#include <nlohmann/json.hpp>

#include "bench/step_jobs.hpp"

namespace accel::bench {

/// Measures a training step on plain LibTorch and through the Accelerator, alternately. "ratio" is that of the times.
nlohmann::ordered_json measure_one_rank(const Data& data, const Job& job, int rounds);

}  // namespace accel::bench
