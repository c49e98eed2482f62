#pragma once

#include <string>
#include <vector>

/// Which CPUs each local rank runs on.
namespace accel::launcher {

/// Cuts `cpus`, those of one memory node next to each other, into as many runs as equal as can be. With more ranks than
/// CPUs, neighbours share one. Each rank gets one or more.
std::vector<std::vector<int>> plan_cpus(const std::vector<int>& cpus, int num_ranks);

/// Those that this process may run on, by memory node (NUMA), then by number.
std::vector<int> cpus_of_this_process();

/// "0-3,8,10-11", as the kernel writes sets of CPUs.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace accel::launcher
