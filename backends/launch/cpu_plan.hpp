#pragma once

#include <sched.h>

#include <vector>

/// Decides which CPUs each local rank runs on.
namespace accel::launcher {

/// The numbers of a core's CPUs, which are its hyperthreads.
using Core = std::vector<int>;

/// Divides `cores`, of which neighbours should stay together, into contiguous parts of nearly equal size, one per rank.
/// Ranks get whole cores while there are enough, else single CPUs; with more ranks than CPUs, neighbouring ranks share
/// a CPU. Throws ArgumentError without CPUs or ranks.
std::vector<std::vector<int>> plan_cpus(const std::vector<Core>& cores, int num_ranks);

/// Groups `cpus` by core, in the order of the machine's topology: neighbours share caches and a memory node (NUMA). A
/// CPU that the topology lacks is a core of its own, after the others. Source: hwloc's logical order.
std::vector<Core> cores_of(const std::vector<int>& cpus);

/// Returns the CPUs that this process may run on, in ascending order.
std::vector<int> cpus_of_this_process();

/// The form in which sched_setaffinity accepts CPUs.
cpu_set_t cpu_set_of(const std::vector<int>& cpus);

/// Lets this thread, and threads that it starts, run only on the part of this process's CPUs that plan_cpus() gives to
/// `local_rank`. Leaves a process alone that may run on fewer CPUs than its container allows: somebody has bound it.
void pin_to_share(int local_rank, int num_local_ranks);

/// The variable of a rank that its launcher has pinned already.
inline constexpr const char* kIsPinned = "ACCEL_IS_PINNED";

}  // namespace accel::launcher
