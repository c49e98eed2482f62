#pragma once

#include <cstdint>
#include <string>

/// What a process did with its simulated GPUs, and which faults it shall meet.
namespace accel::testing::fake_cuda {

/// Counts since the start of the process. A program reads them through `accel_fake_cuda_counts`.
struct Counts {
  std::int64_t launches = 0;
  std::int64_t host_waits = 0;       ///< calls that made the host wait for a GPU
  std::int64_t pageable_copies = 0;  ///< copies between a GPU and host memory that was not pinned
  std::int64_t device_to_host = 0;
  std::int64_t collectives = 0;
  std::int64_t device_bytes = 0;  ///< allocated now, over all GPUs
};

Counts counts();

void count_launch();
void count_host_wait();
void count_copy(bool is_pageable, bool is_device_to_host);
void count_collective();
void count_bytes(std::int64_t change);

/// Appends a line to FAKE_CUDA_LOG/{rank}.log; does nothing without that variable.
void log(const std::string& line);

/// The faults of FAKE_CUDA_FAULTS, such as "fail_allocation=17,hang_collective=5@1": a name, the number of the call
/// from 1, and the rank that meets it (all ranks without one). Names: fail_allocation (cudaMalloc and its retry),
/// hang_collective, fail_collective (an asynchronous error on all ranks), die_in_collective (SIGKILL).
[[nodiscard]] bool is_faulty(const std::string& name, std::int64_t call);

/// An integer variable of the environment.
[[nodiscard]] std::int64_t setting(const char* name, std::int64_t otherwise);

}  // namespace accel::testing::fake_cuda
