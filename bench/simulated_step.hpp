#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "bench/step_jobs.hpp"

namespace accel::bench {

inline constexpr int kSimulatedRanks = 64;

/// Seconds of one step of simulated ranks; `at_end` is called on rank 0 while all ranks still hold their tensors.
double simulated_ranks(const Data& data, const Job& job, int num_ranks, int steps,
                       const std::function<void()>& at_end = nullptr);
/// A step of 64 simulated ranks beside the same models without communication; ratios are of times to the floor.
nlohmann::ordered_json measure_64_ranks(const Data& data, const Job& job, int rounds, int cores);

}  // namespace accel::bench
