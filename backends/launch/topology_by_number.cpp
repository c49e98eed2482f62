#include <unistd.h>

#include "backends/launch/topology.hpp"

namespace accel::launcher {

Topology read_topology() { return {.cores = {}, .num_allowed_cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))}; }

}  // namespace accel::launcher
