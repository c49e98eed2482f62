// All reads of environment variables are in this file: the environment is process-wide, and simulated ranks must
// not depend on it except where a launched process would.
#include "reference/config/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {

// An empty variable counts as unset. Returns a copy, because a later setenv invalidates the pointer.
std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

// Only "~" and "~/": the form "~user" would need the password database and is not used by Accelerate's files.
std::string expand_home(const std::string& path) {
  const bool is_in_home = path == "~" || path.starts_with("~/");
  return is_in_home ? environment("HOME").value_or("") + path.substr(1) : path;
}

// For requests of a launcher that only the launched process itself must see, not the processes that it starts.
std::optional<std::string> take_environment(const std::string& name) {
  auto value = environment(name);
  unsetenv(name.c_str());
  return value;
}

namespace {

std::vector<std::string> names_of_environment() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    names.push_back(text.substr(0, text.find('=')));
  }
  return names;
}

}  // namespace

// What was set after the environment was cleared is removed too.
EnvironmentScope::~EnvironmentScope() {
  if (was_cleared_) {
    for (const auto& name : names_of_environment()) unsetenv(name.c_str());
  }
  for (const auto& [name, value] : before_) {
    if (value)
      setenv(name.c_str(), value->c_str(), /*overwrite=*/1);
    else
      unsetenv(name.c_str());
  }
}

void EnvironmentScope::set(const std::string& name, const std::optional<std::string>& value) {
  const char* now = std::getenv(name.c_str());
  before_.emplace(name, now == nullptr ? std::nullopt : std::optional<std::string>(now));
  if (value)
    setenv(name.c_str(), value->c_str(), /*overwrite=*/1);
  else
    unsetenv(name.c_str());
}

EnvironmentScope patch_environment(const std::map<std::string, std::string>& variables) {
  EnvironmentScope scope;
  for (const auto& [name, value] : variables) scope.set(upper_case(name), value);
  return scope;
}

EnvironmentScope clear_environment() {
  EnvironmentScope scope;
  for (const auto& name : names_of_environment()) scope.set(name, std::nullopt);
  scope.was_cleared_ = true;
  return scope;
}

// A negative number counts as unset. Source: accelerate/utils/environment.py, get_int_from_env.
std::optional<int> environment_int(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto text = environment(name);
    if (!text) continue;
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    check_config(error == std::errc() && end == text->data() + text->size(), "{}: expected an integer, got '{}'", name,
                 *text);
    if (value >= 0) return value;
  }
  return std::nullopt;
}

// Source: accelerate/utils/environment.py, str_to_bool.
std::optional<bool> flag_of(std::string text) {
  text = lower_case(std::move(text));
  for (const auto* yes : {"1", "true", "t", "yes", "y", "on"}) {
    if (text == yes) return true;
  }
  for (const auto* no : {"0", "false", "f", "no", "n", "off"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<bool> environment_flag(const std::string& name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  const auto flag = flag_of(*text);
  check_config(flag.has_value(), "{}: expected a flag (1, true, yes, on, 0, false, no or off), got '{}'", name, *text);
  return flag;
}

std::chrono::milliseconds collective_timeout() {
  const auto seconds = environment_int({"ACCEL_TIMEOUT_SECONDS"});
  check_config(seconds.value_or(1) >= 1, "ACCEL_TIMEOUT_SECONDS: expected 1 or more, got {}", seconds.value_or(0));
  return seconds ? std::chrono::milliseconds(std::chrono::seconds(*seconds)) : std::chrono::minutes(30);
}

bool fsdp_requested() { return environment_flag("ACCELERATE_USE_FSDP").value_or(false); }

bool deepspeed_requested() { return environment_flag("ACCELERATE_USE_DEEPSPEED").value_or(false); }

bool megatron_lm_requested() { return environment_flag("ACCELERATE_USE_MEGATRON_LM").value_or(false); }

namespace {

// Returns the number of tasks on this machine in a step started by srun. "2(x3),1" means two tasks on each of three
// machines and one on the fourth.
std::optional<int> slurm_tasks_of_node(std::vector<std::string>& problems) {
  const auto tasks = environment("SLURM_STEP_TASKS_PER_NODE"), node = environment("SLURM_NODEID");
  if (!tasks || !node) return std::nullopt;
  int left = std::atoi(node->c_str());
  std::istringstream parts(*tasks);
  for (std::string part; std::getline(parts, part, ',');) {
    int count = 0, times = 1;
    const int read = std::sscanf(part.c_str(), "%d(x%d)", &count, &times);
    if (read < 1 || count < 1 || times < 1) break;
    if (left < times) return count;
    left -= times;
  }
  problems.push_back(
      fmt::format("SLURM_STEP_TASKS_PER_NODE: '{}' contains no entry for machine {}, the value of SLURM_NODEID; "
                  "expected the number of tasks of each machine, such as 2(x3),1; start the ranks with srun, which "
                  "sets both variables",
                  *tasks, *node));
  return std::nullopt;
}

}  // namespace

bool is_in_pod() { return environment("KUBERNETES_SERVICE_HOST").has_value(); }

// The variables of torchrun, Open MPI, MPICH, MVAPICH2 and SLURM, in this order of precedence. The SLURM variables are
// those of a step, which srun starts. Those of the job (SLURM_NTASKS) would be wrong: a batch script has them too, but
// it is a single process.
LaunchEnvironment read_launch_environment() {
  std::vector<std::string> problems;
  // Errors are collected, so that a user with a wrong launch script sees all of them at once.
  const auto read = [&](const std::vector<std::string>& names) -> std::optional<int> {
    try {
      return environment_int(names);
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
      return std::nullopt;
    }
  };
  const auto rank = read({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"});
  const auto world_size =
      read({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"});
  const auto local_rank = read(
      {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"});
  const auto local_size =
      read({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"});
  const auto of_slurm = local_size ? std::nullopt : slurm_tasks_of_node(problems);
  const auto of_job = read({"SLURM_NTASKS_PER_NODE"});  // only a fallback: a step may have fewer tasks
  const auto restart_count = read({"TORCHELASTIC_RESTART_COUNT"});
  const auto port = read({"MASTER_PORT"});
  const auto elastic_restarts = read({"ACCEL_ELASTIC_RESTARTS"});

  LaunchEnvironment launch;
  // A rank without a world size occurs in shells of SLURM jobs, which are ordinary single processes. Only for the
  // variables of torchrun, which a user sets by hand, is an incomplete pair an error (below).
  launch.is_launched = rank.has_value() && world_size.has_value();
  if (launch.is_launched) {
    launch.rank = *rank;
    launch.world_size = *world_size;
    // Controllers of Kubernetes number pods, each of which is a machine with one rank.
    const bool is_pod = is_in_pod() && !local_rank && !local_size;
    const auto size = is_pod ? std::optional(1) : local_size ? local_size : of_slurm ? of_slurm : of_job;
    launch.local_rank = is_pod ? 0 : local_rank.value_or(*rank);
    launch.local_world_size = size.value_or(*world_size);
    launch.has_local_place = is_pod || (local_rank && size);
    launch.restart_count = restart_count.value_or(0);
    launch.elastic_members = environment("ACCEL_ELASTIC_MEMBERS").value_or("");
    launch.elastic_restarts = elastic_restarts.value_or(0);
    const auto address = environment("MASTER_ADDR");
    if (!address && launch.local_world_size < launch.world_size) {
      problems.push_back(fmt::format(
          "{} of {} ranks are on this machine, but MASTER_ADDR is not set; set it to the host name of rank 0",
          launch.local_world_size, launch.world_size));
    }
    launch.master_address = address.value_or(launch.master_address);
    launch.master_port = port.value_or(launch.master_port);
    if (launch.world_size < 1 || launch.rank >= launch.world_size) {
      problems.push_back(fmt::format("RANK {} is outside WORLD_SIZE {}; expected 0 <= RANK < WORLD_SIZE", launch.rank,
                                     launch.world_size));
    }
    if (launch.elastic_restarts > 0 && launch.elastic_members.empty())
      problems.emplace_back("ACCEL_ELASTIC_RESTARTS is set without ACCEL_ELASTIC_MEMBERS");
    if (launch.master_port < 1 || launch.master_port > 65535) {
      problems.push_back(fmt::format("MASTER_PORT {} is not a port; expected 1 to 65535", launch.master_port));
    }
  } else if (rank.has_value() != world_size.has_value() &&
             environment("RANK").has_value() != environment("WORLD_SIZE").has_value()) {
    problems.emplace_back("only one of RANK and WORLD_SIZE is set; set both, or neither for a single process");
  }
  check_config(problems.empty(), "environment: {}", listed(problems, "; "));
  return launch;
}

std::string launch_secret() {
  const auto secret = environment("ACCEL_LAUNCH_SECRET"), file = environment("ACCEL_LAUNCH_SECRET_FILE");
  check_config(!secret || !file, "ACCEL_LAUNCH_SECRET and ACCEL_LAUNCH_SECRET_FILE: both are set; unset one of them");
  if (!file) return secret.value_or("");
  std::error_code error;
  const auto permissions = std::filesystem::status(*file, error).permissions();
  check_config(!error, "ACCEL_LAUNCH_SECRET_FILE: {}: {}", *file, error.message());
  constexpr auto kOthers = std::filesystem::perms::group_all | std::filesystem::perms::others_all;
  check_config((permissions & kOthers) == std::filesystem::perms::none,
               "ACCEL_LAUNCH_SECRET_FILE: {}: other users can access the file; run `chmod 600` on it", *file);
  std::string line;
  std::ifstream in(*file);
  check_config(static_cast<bool>(std::getline(in, line)) && !line.empty(),
               "ACCEL_LAUNCH_SECRET_FILE: {}: expected a secret in the first line of a readable file", *file);
  return line;
}

}  // namespace accel
