#pragma once

#include <memory>
#include <string>

#include "reference/state/rank_context.hpp"

namespace accel::programs {

/// The rank that a launcher's variables describe, over a real backend: "gloo", "nccl", or "" for the one that fits.
/// Without such variables, one process alone. Throws ConfigError or CommError.
std::unique_ptr<RankContext> make_real_rank(const std::string& backend);

/// ACCEL_TIMEOUT_SECONDS, or 30 minutes: how long a collective waits for its peers.
std::chrono::milliseconds collective_timeout();

}  // namespace accel::programs
