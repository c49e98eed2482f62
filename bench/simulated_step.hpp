#pragma once

#include <functional>
#include <memory>

#include "bench/rows.hpp"
#include "bench/step_jobs.hpp"

namespace accel::bench {

/// Returns the seconds of one step of simulated ranks. Calls `at_end` on rank 0 while all ranks still hold their
/// tensors.
double simulated_ranks(const Data& data, const Job& job, int num_ranks, StepTimer timer,
                       const std::function<void()>& at_end = nullptr);

/// Rows of a step of 8 and 64 simulated ranks, and of the same models without communication, which are the floor.
Rows simulated_rows(const std::shared_ptr<const Data>& data, int cores);

}  // namespace accel::bench
