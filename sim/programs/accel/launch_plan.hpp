#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/launch/job.hpp"
#include "sim/programs/accel/launch_flags.hpp"
#include "sim/programs/accel/launch_settings.hpp"

namespace accel::programs {

struct MpirunOptions {
  std::string hostfile;
  int num_per_host = 1, num_ranks = 1;
  bool is_open_mpi = true;  ///< or takes the options of MPICH and Intel MPI
  bool binds_to_cores = false;
};

/// mpirun with its options, without the program. What Accelerate leaves to mpirun's habits, each variable is handed on
/// by name.
std::vector<std::string> mpirun_command(const MpirunOptions& options,
                                        const std::map<std::string, std::string>& variables);

/// The hosts of an MPI hostfile: "host", "host slots=4" or "host:4" a line, "#" begins a comment.
std::vector<std::string> parse_hostfile(const std::string& text);

/// What `accel launch` does, before anything runs.
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

/// The command line of each process here, to be read or pasted into a shell: variables, then the program.
std::string describe(const LaunchPlan& plan);

}  // namespace accel::programs
