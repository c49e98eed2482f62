#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/mesh/parallelism_config.hpp"

/// The mesh as the environment and the program's options describe it together.
///
///     auto mesh = accel::parallelism_config_of_environment(problems);
///     if (mesh) mesh = accel::resolved(*mesh, problems, warnings);
///
/// Thread rule: pure functions, except that they read the environment.
namespace accel {

/// Reads the mesh that a launcher passes in ACCELERATE_USE_PARALLELISM_CONFIG, PARALLELISM_CONFIG_DP_SHARD_SIZE and the
/// related variables; nullopt if there is none. Appends problems to `problems`.
std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems);

/// Returns `config` with the handlers of its axes, complete with values of the environment and defaults, and without
/// those of axes of size 1. Appends to `problems`, and to `warnings` what is set and ignored.
ParallelismConfig resolved(ParallelismConfig config, std::vector<std::string>& problems,
                           std::vector<std::string>& warnings);

}  // namespace accel
