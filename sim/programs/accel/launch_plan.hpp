#pragma once

#include <string>

#include "backends/launch/job.hpp"
#include "sim/programs/accel/launch_flags.hpp"
#include "sim/programs/accel/launch_settings.hpp"

namespace accel::programs {

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
