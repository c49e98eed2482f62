#pragma once

#include "reference/config/options.hpp"

namespace accel {

struct ResolvedOptions {
  AcceleratorOptions options = {};  ///< with the environment's values in their place
  ResolvedPlugin plugin = {};       ///< what the active plugin comes to
};
/// Throws ConfigError with all problems, the same on every rank.
ResolvedOptions resolved(AcceleratorOptions options);

/// Of one plugin of several. Throws ConfigError.
ResolvedPlugin resolved_plugin(const DeepSpeedPlugin& plugin, const AcceleratorOptions& options);

}  // namespace accel
