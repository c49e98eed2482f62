#pragma once

#include <chrono>
#include <memory>

#include "reference/config/environment.hpp"
#include "reference/state/rank_context.hpp"

/// Ranks over PyTorch's ProcessGroupNCCL, one GPU per rank (local rank modulo the number of GPUs). A build without CUDA
/// has the same functions, which report that no GPU is available.
///
/// Thread rule: each process creates its own rank.
namespace accel::nccl {

/// Number of GPUs that CUDA finds; 0 in a build without CUDA.
int num_gpus();

/// Whether this build supports NCCL and this machine has a GPU.
bool is_available();

/// Lets a single process compute on the first GPU. Throws ConfigError in a build without CUDA.
void use_first_gpu(RankContext& context);

/// Creates the rank of a job whose place comes from a launcher, and joins the world group. Collective. Throws
/// ConfigError in a build without CUDA, or on a machine without a GPU.
std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& launch, std::chrono::milliseconds timeout);

}  // namespace accel::nccl
