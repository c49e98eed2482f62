#pragma once

#include <chrono>
#include <memory>

#include "reference/config/environment.hpp"
#include "reference/state/rank_context.hpp"

/// Ranks over PyTorch's ProcessGroupNCCL, one GPU each (local rank modulo the number of GPUs). In a build without CUDA
/// the same functions answer that there is none.
namespace accel::nccl {

/// Those that CUDA sees; 0 in a build without CUDA.
int num_gpus();

/// Whether this build has NCCL and this machine a GPU.
bool is_available();

/// A process alone computes on the first GPU. Throws ConfigError in a build without CUDA.
void use_first_gpu(RankContext& context);

/// Throws ConfigError in a build without CUDA, or on a machine without a GPU.
std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& launch, std::chrono::milliseconds timeout);

}  // namespace accel::nccl
