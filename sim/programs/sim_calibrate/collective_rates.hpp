#pragma once

#include <c10/core/DeviceType.h>

#include <optional>
#include <string>

#include "sim/programs/sim_calibrate/device_timing.hpp"

/// Measures what collectives among the GPUs of a machine reach, for the constants of `sim-run predict`.
///
///     const auto rates = measure_collectives(/*num_ranks=*/8, c10::kCUDA, /*repeats=*/5);
///     std::cout << hardware_file("h100_sxm5_80", measure_device(c10::kCUDA), rates);
///
/// Thread rule: one call at a time; nothing else may use the devices.
namespace accel::programs {

/// Seconds of a call of n ranks beside those of its bytes: base + n * hop. `hop` is absent if only two ranks were
/// measured.
struct CallLatency {
  double base = 0;
  std::optional<double> hop = {};
};

/// The bus rate is busbw of nccl-tests: 2 (n - 1) / n of an all-reduce's bytes, or (n - 1) / n of those of an
/// all-gather's result, per second.
struct CollectiveRates {
  double bus_bytes_per_second = 0;  ///< of large calls, the slower kind; 0: not measured
  CallLatency all_reduce = {}, all_gather = {};
};

/// Calls of 1 MiB and more, as training makes them, over NCCL on GPUs 0 to num_ranks - 1, and of two of them for the
/// cost of a hop. On the CPU smaller ones, over Gloo. Throws Error with the message of the first rank that failed.
[[nodiscard]] CollectiveRates measure_collectives(int num_ranks, c10::DeviceType device, int repeats);

/// A part of a hardware file for a GPU of the shipped one. Throws ArgumentError for another name.
[[nodiscard]] std::string hardware_file(const std::string& gpu, const DeviceRates& rates,
                                        const CollectiveRates& collectives);

}  // namespace accel::programs
