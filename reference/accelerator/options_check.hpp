#pragma once

#include "reference/config/plugins/options.hpp"

namespace accel {

struct ResolvedOptions {
  AcceleratorOptions options = {};  ///< with values from the environment filled in
  ResolvedPlugin plugin = {};       ///< the settings that the active plugin implies
};
/// Fills in the environment's values and validates all options, for `world_size` ranks. Throws ConfigError that lists
/// all problems, the same on every rank.
ResolvedOptions resolved(AcceleratorOptions options, int world_size);

/// Resolves one of several plugins. Throws ConfigError.
ResolvedPlugin resolved_plugin(const DeepSpeedPlugin& plugin, const AcceleratorOptions& options, int world_size);

}  // namespace accel
