#pragma once

#include <memory>
#include <string>

#include "reference/state/rank_context.hpp"

namespace accel::programs {

/// The rank that a launcher's variables describe, over a real backend: "gloo", "nccl", or "" for the one that fits
/// (gloo where ACCELERATE_USE_CPU says so). Without such variables, one process alone. Throws ConfigError or CommError.
std::unique_ptr<RankContext> make_real_rank(const std::string& backend);

/// ACCEL_TIMEOUT_SECONDS, or 30 minutes: how long a collective waits for its peers.
std::chrono::milliseconds collective_timeout();

/// Leaves a failed rank's connections open until its process has ended. Closing them at once would let the others fail
/// while this one still unwinds, and the first to end is the one that a launcher names.
void keep_until_exit(std::unique_ptr<RankContext> context);

}  // namespace accel::programs
