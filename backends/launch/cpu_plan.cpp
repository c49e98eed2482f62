#include "backends/launch/cpu_plan.hpp"

#include <algorithm>
#include <set>

#include "backends/launch/topology.hpp"
#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

std::vector<Core> group_by_core(std::vector<Core> topology, const std::vector<int>& cpus) {
  std::set<int> left(cpus.begin(), cpus.end());
  std::vector<Core> cores;
  for (auto& core : topology) {
    std::erase_if(core, [&](int cpu) { return left.erase(cpu) == 0; });
    if (!core.empty()) cores.push_back(std::move(core));
  }
  for (const int cpu : left) cores.push_back({cpu});
  return cores;
}

// Rounding down spreads the remainder over all ranks. With more ranks than items begin == end, hence the max.
std::pair<std::size_t, std::size_t> part_of(std::size_t rank, std::size_t num_ranks, std::size_t num_items) {
  const auto begin = rank * num_items / num_ranks;
  return {begin, std::max((rank + 1) * num_items / num_ranks, begin + 1)};
}

}  // namespace

std::vector<std::vector<int>> plan_cpus(const std::vector<Core>& cores, int num_ranks) {
  check_argument(!cores.empty() && num_ranks >= 1, "plan_cpus: {} cores for {} ranks; expected one or more of both",
                 cores.size(), num_ranks);
  const auto ranks = static_cast<std::size_t>(num_ranks);
  std::vector<Core> parts = cores;
  if (ranks > cores.size()) {
    parts.clear();
    for (const auto& core : cores) {
      for (const int cpu : core) parts.push_back({cpu});
    }
  }
  std::vector<std::vector<int>> plan(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto [begin, end] = part_of(rank, ranks, parts.size());
    for (auto part = begin; part < end; ++part)
      plan[rank].insert(plan[rank].end(), parts[part].begin(), parts[part].end());
  }
  return plan;
}

std::vector<Core> cores_of(const std::vector<int>& cpus) { return group_by_core(read_topology().cores, cpus); }

// The affinity mask, not the number of cores: containers, taskset and batch systems restrict it.
std::vector<int> cpus_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ensure(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity failed");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

cpu_set_t cpu_set_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

void pin_to_share(int local_rank, int num_local_ranks) {
  const auto topology = read_topology();
  const auto cpus = cpus_of_this_process();
  if (static_cast<int>(cpus.size()) < topology.num_allowed_cpus) return;  // somebody has bound this process
  const auto plan = plan_cpus(group_by_core(topology.cores, cpus), num_local_ranks);
  const auto set = cpu_set_of(plan.at(static_cast<std::size_t>(local_rank % num_local_ranks)));
  ensure(sched_setaffinity(0, sizeof(set), &set) == 0, "sched_setaffinity failed");
}

}  // namespace accel::launcher
