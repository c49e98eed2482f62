#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Environment variables, read in this one place.
namespace accel {

/// The value of a variable, or nothing if it is unset or empty.
std::optional<std::string> environment(const std::string& name);

/// `path` with the home folder in place of a leading "~".
std::string expand_home(const std::string& path);

/// The value of a variable, which is unset from then on. Thread rule: before this process has other threads.
std::optional<std::string> take_environment(const std::string& name);

/// The first of `names` that holds a non-negative integer. Throws ConfigError if one is set and is not an integer.
/// Source: accelerate/utils/environment.py, get_int_from_env.
std::optional<int> environment_int(const std::vector<std::string>& names);

/// Yes (1, true, t, yes, y, on) or no (0, false, f, no, n, off), in any case; nothing for another word.
std::optional<bool> flag_of(std::string text);

/// What `flag_of` reads in a variable; nothing if it is unset.
/// Throws ConfigError for another word. Source: accelerate/utils/environment.py, parse_flag_from_env.
std::optional<bool> environment_flag(const std::string& name);

/// Whether a launcher asks for a plugin that is not given: ACCELERATE_USE_FSDP, ACCELERATE_USE_DEEPSPEED.
bool asks_for_fsdp();
bool asks_for_deepspeed();

/// This process's place among the ranks, as torchrun, mpirun (Open MPI, MPICH) or SLURM tell it.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int restart_count = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  bool is_launched = false;  ///< false: none of the variables is set, this is one process of its own
};

/// Throws ConfigError with all problems found: a rank outside the world, half of a pair of
/// variables, a port that is no port.
LaunchEnvironment read_launch_environment();

}  // namespace accel
