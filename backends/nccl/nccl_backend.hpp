#pragma once

#include <memory>
#include <optional>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/nccl/gpus.hpp"
#include "reference/config/environment.hpp"
#include "reference/state/rank_context.hpp"

/// Ranks over PyTorch's ProcessGroupNCCL, one GPU per rank, and over Gloo for CPU tensors. A build without CUDA
/// has the same functions, which report that no GPU is available.
///
/// Thread rule: each process creates its own rank.
namespace accel::nccl {

/// Lets a rank compute on GPU `index`; without one on that of its local rank, modulo the number of GPUs. Throws
/// ConfigError in a build without CUDA.
void use_gpu(RankContext& context, std::optional<int> index = std::nullopt);

/// Lets a rank that computes on a GPU capture its work as CUDA graphs. Its thread leaves the default stream, from which
/// CUDA cannot capture: gradient accumulators belong to the stream on which they were created.
void offer_graphs(RankContext& context);
/// While a thread of this process captures such a graph.
bool is_capturing();

/// Like `use_gpu`, for ranks that are threads of this process and may share the GPU: the rank gets a CUDA
/// generator that no other rank draws from. The result restores the calling thread's GPU and generator. Throws
/// ConfigError in a build without CUDA.
[[nodiscard]] std::shared_ptr<void> share_gpu(RankContext& context);

/// Creates the rank of a job whose place comes from a launcher, and joins the world group. Collective. A
/// collective that fails or comes late ends the process with exit code 1 and the error of the rank. Throws ConfigError
/// in a build without CUDA, and on a machine with fewer GPUs than ranks.
/// `index`: see use_gpu.
std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& launch, const gloo::GlooOptions& options,
                                       std::optional<int> index = std::nullopt);

}  // namespace accel::nccl
