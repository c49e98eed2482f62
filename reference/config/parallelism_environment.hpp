#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/config/options.hpp"

namespace accel {

/// The mesh that a launcher tells by ACCELERATE_USE_PARALLELISM_CONFIG and PARALLELISM_CONFIG_DP_SHARD_SIZE and the
/// others; nothing if it tells of none. What is wrong is added to `problems`. Source: accelerate/parallelism_config.py,
/// __post_init__.
std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems);

}  // namespace accel
