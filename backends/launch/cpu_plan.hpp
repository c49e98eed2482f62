#pragma once

#include <string>
#include <vector>

/// Decides which CPUs each local rank runs on.
namespace accel::launcher {

/// Splits `cpus`, ordered by memory node, into contiguous parts of nearly equal size, one per rank. With more ranks
/// than CPUs, neighbouring ranks share a CPU. Throws ArgumentError without CPUs or ranks.
std::vector<std::vector<int>> plan_cpus(const std::vector<int>& cpus, int num_ranks);

/// Returns the CPUs that this process may run on, ordered by memory node (NUMA), then by number.
std::vector<int> cpus_of_this_process();

/// Parses a set of CPUs as the kernel writes it, for example "0-3,8,10-11".
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace accel::launcher
