#include "backends/launch/cpu_plan.hpp"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// The CPUs in the order of their memory nodes; empty if the kernel has no /sys/devices/system/node, as in some
// containers. The order makes neighbouring ranks share a node, so their memory stays local.
std::vector<int> cpus_by_node() {
  std::vector<std::pair<int, fs::path>> nodes;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", ignored)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos && name.size() > 4)
      nodes.emplace_back(std::stoi(name.substr(4)), entry.path());
  }
  std::sort(nodes.begin(), nodes.end());
  std::vector<int> cpus;
  for (const auto& [number, path] : nodes) {
    std::string text;
    std::ifstream(path / "cpulist") >> text;
    for (const int cpu : parse_cpu_list(text)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<std::vector<int>> plan_cpus(const std::vector<int>& cpus, int num_ranks) {
  check_argument(!cpus.empty() && num_ranks >= 1, "plan_cpus: {} CPUs for {} ranks; expected one or more of both",
                 cpus.size(), num_ranks);
  const auto count = cpus.size(), ranks = static_cast<std::size_t>(num_ranks);
  std::vector<std::vector<int>> plan;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    // Rounding down spreads the remainder over all ranks. With more ranks than CPUs begin == end, hence the max.
    const auto begin = rank * count / ranks;
    const auto end = std::max((rank + 1) * count / ranks, begin + 1);
    plan.emplace_back(cpus.begin() + static_cast<std::ptrdiff_t>(begin),
                      cpus.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return plan;
}

// The affinity mask, not the number of cores: containers, taskset and batch systems restrict it.
std::vector<int> cpus_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ensure(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity failed");
  std::vector<int> cpus;
  const auto add = [&](int cpu) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    if (cpu < CPU_SETSIZE) CPU_CLR(cpu, &set);
  };
  // CPUs that no node lists come last, in numerical order. `add` removes a CPU from the set, so none is added twice.
  for (const int cpu : cpus_by_node()) add(cpu);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) add(cpu);
  return cpus;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int first = 0, last = 0;
    if (!(ends >> first)) continue;
    if (!(ends.ignore(1, '-') >> last)) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace accel::launcher
