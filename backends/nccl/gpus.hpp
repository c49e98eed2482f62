#pragma once

/// The GPUs of this machine. A build without CUDA has none.
///
/// Thread rule: any thread.
namespace accel::nccl {

/// Number of GPUs that CUDA finds; 0 in a build without CUDA.
int num_gpus();

/// Whether this build supports NCCL and this machine has a GPU.
bool is_available();

}  // namespace accel::nccl
