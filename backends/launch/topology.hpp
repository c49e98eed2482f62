#pragma once

#include <vector>

#include "backends/launch/cpu_plan.hpp"

namespace accel::launcher {

/// What this machine's processors look like.
struct Topology {
  std::vector<Core> cores;   ///< in an order in which neighbours share caches; empty: unknown
  int num_allowed_cpus = 0;  ///< of this container
};

/// By hwloc; in a build without it no core is known.
Topology read_topology();

}  // namespace accel::launcher
