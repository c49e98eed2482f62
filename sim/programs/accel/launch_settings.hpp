#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/launch/launch_config.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "sim/programs/accel/launch_flags.hpp"

namespace accel::programs {

/// What a launch depends on besides the flags. Tests pass their own values.
struct LaunchInputs {
  std::optional<LaunchConfig> config;                                           ///< of the config file, if one is read
  std::function<std::optional<std::string>(const std::string& name)> variable;  ///< reads the environment
  int num_gpus = 0;
  int num_cores = 1;
  std::vector<std::string> hosts = {};  ///< of --mpirun_hostfile, in its order
  bool has_open_mpi = true;             ///< which mpirun it is: Open MPI's options, or those of MPICH and Intel MPI
};

/// Returns the configuration of a launch. Each value is the first that is set among flag, file, environment and
/// default. Adds everything that is wrong to `problems`.
LaunchConfig merge_settings(const LaunchFlags& flags, const LaunchInputs& surroundings,
                            std::vector<std::string>& problems);

/// Whether a flag or the file selects the feature of a section. Keys of other sections in the file are kept silently,
/// because a file may hold settings for several kinds of launches.
bool uses_section(const LaunchFlags& flags, const LaunchConfig& config, const LaunchSection& section);

/// Returns the hostfile if mpirun starts the ranks, else nothing.
std::optional<std::string> hostfile_of(const LaunchFlags& flags, const LaunchConfig& config);

/// Returns whether the default config file is read. A file that a flag names is always read; the default one is not
/// read with --cpu, as in Accelerate.
bool reads_default_file(const LaunchFlags& flags);

}  // namespace accel::programs
