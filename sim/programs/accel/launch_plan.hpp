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
  bool is_open_mpi = true;  ///< false: accepts the options of MPICH and Intel MPI
  bool binds_to_cores = false;
};

/// Returns mpirun with its options, without the program. Each variable is passed on explicitly, whereas Accelerate
/// relies on mpirun's defaults.
std::vector<std::string> mpirun_command(const MpirunOptions& options,
                                        const std::map<std::string, std::string>& variables);

/// Returns the hosts of an MPI hostfile, one per line: "host", "host slots=4" or "host:4"; "#" starts a comment.
std::vector<std::string> parse_hostfile(const std::string& text);

/// What `accel launch` will do, decided before anything runs.
struct LaunchPlan {
  enum class Way { kProcesses, kSimulated, kMpirun };
  Way way = Way::kProcesses;
  launcher::JobOptions job;  ///< for kMpirun: one process, mpirun
  int num_ranks = 1;
  bool may_change_port = false;  ///< the user has not set the port: use another one if it is in use
  std::string sim_options = {};  ///< of sim-run, for kSimulated; each after a space
  std::string diagnosis = {};    ///< file for how the job ended, as JSON; empty: none
  std::string timeline = {};     ///< file for a timeline of this machine's ranks; empty: none
  bool dry_run = false, quiet = false;
  std::vector<std::string> warnings = {};  ///< values of the file that have no effect
};

/// Plans a launch. Throws ConfigError with all problems of flags, file and variables.
LaunchPlan plan_launch(const LaunchFlags& flags, const LaunchInputs& surroundings);

/// Returns the command line of each process on this machine, to read or paste into a shell: variables, then the
/// program.
std::string describe(const LaunchPlan& plan);

}  // namespace accel::programs
