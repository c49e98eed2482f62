#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/launch/job.hpp"
#include "reference/config/launch_config.hpp"
#include "sim/programs/accel/launch_flags.hpp"

namespace accel::programs {

/// What a plan depends on beside the flags.
struct LaunchSurroundings {
  std::optional<LaunchConfig> config;                                           ///< the file's, if one is read
  std::function<std::optional<std::string>(const std::string& name)> variable;  ///< of the environment
  int num_gpus = 0;
  int num_cores = 1;
  std::vector<std::string> hosts = {};  ///< of --mpirun_hostfile, in its order
  bool has_open_mpi = true;             ///< which mpirun it is: Open MPI's options, or those of MPICH and Intel MPI
};

/// What `accel launch` does, before anything runs: where each value comes from is decided here, a flag before the file,
/// the file before the environment, the environment before the default.
struct LaunchPlan {
  enum class Way { kProcesses, kSimulated, kMpirun };
  Way way = Way::kProcesses;
  launcher::JobOptions job;  ///< of kMpirun: one process, mpirun
  int num_ranks = 1;
  bool may_change_port = false;  ///< nobody named the port: another is taken if it is in use
  bool dry_run = false, quiet = false;
};

/// Throws ConfigError with all problems of flags, file and variables together.
LaunchPlan plan_launch(const LaunchFlags& flags, const LaunchSurroundings& surroundings);

/// Whether the file is read: one that is named always, the default one if it is there, but not with --cpu, as in
/// Accelerate.
bool reads_default_file(const LaunchFlags& flags);

/// The hosts of an MPI hostfile: "host", "host slots=4" or "host:4" a line, "#" begins a comment.
std::vector<std::string> parse_hostfile(const std::string& text);

/// The command line of each process here, to be read or pasted into a shell: variables, then the program.
std::string describe(const LaunchPlan& plan);

}  // namespace accel::programs
