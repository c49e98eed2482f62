#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Environment variables. Only these functions read them.
namespace accel {

/// Returns the value of a variable, or nullopt if it is unset or empty.
std::optional<std::string> environment(const std::string& name);

/// Returns `path` with a leading "~" replaced by the home folder.
std::string expand_home(const std::string& path);

/// Returns the value of a variable and unsets it. Thread rule: only before this process has other threads.
std::optional<std::string> take_environment(const std::string& name);

/// Restores the environment when it is destroyed. Thread rule: only while this process has no other threads.
class [[nodiscard]] EnvironmentScope {
 public:
  EnvironmentScope() = default;
  ~EnvironmentScope();
  EnvironmentScope(EnvironmentScope&& other) noexcept
      : before_(std::exchange(other.before_, {})), was_cleared_(std::exchange(other.was_cleared_, false)) {}
  EnvironmentScope& operator=(EnvironmentScope&&) = delete;

 private:
  friend EnvironmentScope patch_environment(const std::map<std::string, std::string>& variables);
  friend EnvironmentScope clear_environment();
  void set(const std::string& name, const std::optional<std::string>& value);
  std::map<std::string, std::optional<std::string>> before_;
  bool was_cleared_ = false;
};
/// Sets variables, with names in upper case, while the scope lives. Source: accelerate/utils/environment.py.
EnvironmentScope patch_environment(const std::map<std::string, std::string>& variables);
/// Unsets all variables while the scope lives.
EnvironmentScope clear_environment();

/// Returns the first non-negative integer among the variables `names`. Throws ConfigError if one is not an integer.
/// Source: accelerate/utils/environment.py, get_int_from_env.
std::optional<int> environment_int(const std::vector<std::string>& names);

/// Parses yes (1, true, t, yes, y, on) or no (0, false, f, no, n, off), in any case; nullopt for other words.
std::optional<bool> flag_of(std::string text);

/// Parses a variable with `flag_of`; nullopt if it is unset.
/// Throws ConfigError for another word. Source: accelerate/utils/environment.py, parse_flag_from_env.
std::optional<bool> environment_flag(const std::string& name);

/// Returns how long a collective waits for its peers: ACCEL_TIMEOUT_SECONDS, or 30 minutes. Throws ConfigError.
std::chrono::milliseconds collective_timeout();

/// True if the launcher requests a plugin: ACCELERATE_USE_FSDP, ACCELERATE_USE_DEEPSPEED, ACCELERATE_USE_MEGATRON_LM.
bool fsdp_requested();
bool deepspeed_requested();
bool megatron_lm_requested();

/// Whether this process runs in a pod of Kubernetes: KUBERNETES_SERVICE_HOST.
bool is_in_pod();

/// The rank of this process, as set by torchrun, mpirun (Open MPI, MPICH) or SLURM, or for a pod by a controller of
/// Kubernetes: RANK and WORLD_SIZE without local ones number pods, each with one rank.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  bool has_local_place = true;  ///< false: no variable has the two above, which are right if all ranks share a machine
  int restart_count = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  bool is_launched = false;  ///< false: no variables are set, this is a single process
  /// Where the members of an elastic training note how a process joins them; empty: nowhere. ACCEL_ELASTIC_MEMBERS.
  std::string elastic_members = {};
  /// Above 0: the rank was lost so many times, and this process joins the training. ACCEL_ELASTIC_RESTARTS.
  int elastic_restarts = 0;
};

/// Reads the variables. Throws ConfigError that lists all problems: a rank outside the world, only one of two required
/// variables, or an invalid port.
LaunchEnvironment read_launch_environment();

/// Returns the secret by which the launchers of several machines recognize each other: ACCEL_LAUNCH_SECRET, or the
/// first line of the file ACCEL_LAUNCH_SECRET_FILE; "" without both. Throws ConfigError for both, an empty secret, or a
/// file that cannot be read or that other users can read.
std::string launch_secret();

}  // namespace accel
