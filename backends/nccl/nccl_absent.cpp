// Compiled in place of nccl_backend.cpp in builds without CUDA, so that callers need no #ifdef: availability is a
// run-time question, and the errors name the build that has it.
#include "backends/nccl/nccl_backend.hpp"
#include "reference/core/errors.hpp"

namespace accel::nccl {

void use_gpu(RankContext& /*context*/, std::optional<int> /*index*/) {
  throw ConfigError("this build lacks CUDA support; build with `./dev build gpu`");
}

void offer_graphs(RankContext& /*context*/) {}

std::shared_ptr<void> share_gpu(RankContext& context) {
  use_gpu(context);
  return nullptr;
}

std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& /*launch*/, const gloo::GlooOptions& /*options*/,
                                       std::optional<int> /*index*/) {
  throw ConfigError("backend nccl: this build lacks CUDA support; build with `./dev build gpu`, or use gloo or sim");
}

}  // namespace accel::nccl
