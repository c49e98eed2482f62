#include "backends/nccl/nccl_backend.hpp"
#include "reference/core/errors.hpp"

namespace accel::nccl {

int num_gpus() { return 0; }

bool is_available() { return false; }

void use_first_gpu(RankContext& /*context*/) {
  throw ConfigError("this build has no CUDA; build it with `./dev build gpu`");
}

std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& /*launch*/, std::chrono::milliseconds /*timeout*/) {
  throw ConfigError("backend nccl: this build has no CUDA; build it with `./dev build gpu`, or use gloo or sim");
}

}  // namespace accel::nccl
