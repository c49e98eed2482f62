#pragma once

/// What this build and this machine can do, under the names of Accelerate's utilities.
///
///     accel::Accelerator accelerator({.mixed_precision = accel::is_cuda_available() ? "bf16" : "no"});
///
/// Thread rule: pure functions. Source: accelerate/utils/imports.py.
namespace accel {

/// Whether the build supports CUDA and the machine has a GPU.
[[nodiscard]] bool is_cuda_available();

/// CPUs and GPUs compute in bfloat16; GPUs before Ampere emulate it.
[[nodiscard]] constexpr bool is_bf16_available() { return true; }
[[nodiscard]] constexpr bool is_fp16_available() { return true; }
/// Whether mixed_precision "fp8" is part of the library; it needs no additional package.
[[nodiscard]] constexpr bool is_fp8_available() { return true; }

[[nodiscard]] constexpr bool is_torch_distributed_available() { return true; }
/// Whether the library writes TensorBoard's event files; it needs no additional package.
[[nodiscard]] constexpr bool is_tensorboard_available() { return true; }

}  // namespace accel
