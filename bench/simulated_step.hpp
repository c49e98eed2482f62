#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "bench/step_jobs.hpp"

namespace accel::bench {

inline constexpr int kSimulatedRanks = 64;

/// Returns the seconds of one step of simulated ranks. Calls `at_end` on rank 0 while all ranks still hold their
/// tensors.
double simulated_ranks(const Data& data, const Job& job, int num_ranks, int steps,
                       const std::function<void()>& at_end = nullptr);
/// Measures a step of 64 simulated ranks and one of the same models without communication. Ratios are times relative to
/// the floor: the models stepped in turn on one thread, divided by the number of cores.
nlohmann::ordered_json measure_64_ranks(const Data& data, const Job& job, int rounds, int cores);

}  // namespace accel::bench
