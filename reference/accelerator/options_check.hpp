#pragma once

#include "reference/config/options.hpp"

namespace accel {

/// Options with the environment's values in their place. Throws ConfigError with all problems, the same on every rank.
AcceleratorOptions resolved_options(AcceleratorOptions options);

/// What the plugin of resolved options comes to.
ResolvedPlugin resolved_plugin(const AcceleratorOptions& options);

/// Throws ConfigError if the mesh is none of `world_size` ranks.
void check_mesh(const ParallelismConfig& mesh, int world_size);

}  // namespace accel
