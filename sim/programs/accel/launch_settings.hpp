#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/launch_config.hpp"
#include "sim/programs/accel/launch_flags.hpp"

namespace accel::programs {

/// What a launch depends on beside the flags.
struct LaunchSurroundings {
  std::optional<LaunchConfig> config;                                           ///< the file's, if one is read
  std::function<std::optional<std::string>(const std::string& name)> variable;  ///< of the environment
  int num_gpus = 0;
  int num_cores = 1;
  std::vector<std::string> hosts = {};  ///< of --mpirun_hostfile, in its order
  bool has_open_mpi = true;             ///< which mpirun it is: Open MPI's options, or those of MPICH and Intel MPI
};

/// The configuration of a launch. Each value is the first there is of flag, file, environment and default. Adds all
/// that is wrong to `problems`.
LaunchConfig merge_settings(const LaunchFlags& flags, const LaunchSurroundings& surroundings,
                            std::vector<std::string>& problems);

/// The file of hosts that mpirun is to start the ranks on, if it is to.
std::optional<std::string> hostfile_of(const LaunchFlags& flags, const LaunchConfig& config);

/// Whether the file is read: one that is named always, the default one if it is there, but not with --cpu, as in
/// Accelerate.
bool reads_default_file(const LaunchFlags& flags);

}  // namespace accel::programs
