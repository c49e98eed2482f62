#pragma once

#include <c10/core/Device.h>

#include <string>

/// Measures what one device reaches, for the constants of `sim-run predict`.
///
///     const auto rates = measure_device(c10::Device(c10::kCUDA));
///
/// Thread rule: one call at a time; nothing else may use the device.
namespace accel::programs {

struct DeviceRates {
  double matmul_flops_per_second = 0;  ///< bfloat16, the best of several large shapes
  double memory_bytes_per_second = 0;  ///< read and written by a copy
  double kernel_seconds = 0;           ///< of the shortest kernel, in a queue of them
};

/// Takes about 5 s.
[[nodiscard]] DeviceRates measure_device(c10::Device device);

}  // namespace accel::programs
