#include <hwloc.h>

#include "backends/launch/topology.hpp"

namespace accel::launcher {
namespace {

std::vector<Core> cores_in(hwloc_topology_t topology) {
  std::vector<Core> cores;
  const auto next = [&](hwloc_obj_t previous) {
    return hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, previous);
  };
  for (auto* core = next(nullptr); core != nullptr; core = next(core)) {
    auto& cpus = cores.emplace_back();
    int cpu = -1;
    while ((cpu = hwloc_bitmap_next(core->cpuset, cpu)) >= 0) cpus.push_back(cpu);
  }
  return cores;
}

}  // namespace

Topology read_topology() {
  Topology read;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return read;
  if (hwloc_topology_load(topology) == 0) {
    read.cores = cores_in(topology);
    read.num_allowed_cpus = hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(topology));
  }
  hwloc_topology_destroy(topology);
  return read;
}

}  // namespace accel::launcher
