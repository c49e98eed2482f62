#pragma once

#include <memory>
#include <string>

#include "reference/state/rank_context.hpp"

namespace accel::programs {

/// Makes the rank that a launcher's variables describe, over a real backend. "gloo" computes on the CPU, "nccl" on a
/// GPU. "" uses a GPU where there is one and ACCELERATE_USE_CPU is not set, over the backend that ACCEL_BACKEND names
/// or NCCL; else Gloo. Without a launcher's variables and with backend "", makes a world of one process. Throws
/// ConfigError or CommError.
std::unique_ptr<RankContext> make_real_rank(const std::string& backend);

/// Keeps a failed rank's connections open until its process ends. Closing them at once would make other ranks fail
/// while this one still unwinds, and a launcher blames the first process that ends.
void keep_until_exit(std::unique_ptr<RankContext> context);

}  // namespace accel::programs
