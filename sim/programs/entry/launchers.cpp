// accel::launch and its relatives start ranks from inside a program, as Python's notebook_launcher does. C++ cannot
// fork a process with threads and LibTorch state, nor pickle a function, so the program executes itself again: the
// parent passes the name of a registered function in ACCEL_LAUNCHED, and run_launched() in the child's main finds it.
// Source: accelerate/launchers.py.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "backends/launch/job.hpp"
#include "backends/launch/ports.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/nearest_name.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/launch.hpp"
#include "reference/run.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"

namespace accel {
namespace {

using LaunchRequest = nlohmann::ordered_json;

constexpr const char* kLaunchRequestVariable = "ACCEL_LAUNCHED";

// Filled by static constructors before main, and read-only afterwards, so that no mutex is needed. A new execution of
// the program must find a function by its name before its main has done anything.
std::map<std::string, LaunchedFunction>& launchables() {
  static std::map<std::string, LaunchedFunction> functions;
  return functions;
}

const LaunchedFunction& find_launchable(const std::string& name) {
  const auto found = launchables().find(name);
  if (found != launchables().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, function] : launchables()) names.push_back(known);
  throw ConfigError(fmt::format(
      "launch: no function is registered as '{}'{}; expected `const accel::Launchable kName(\"{}\", function);`", name,
      nearest_name_hint(name, names), name));
}

// Ranks inside ranks are rejected: their collectives would mix with those of the rank that launches them.
bool is_rank_thread() {
  try {
    current_rank();
    return true;
  } catch (const StateError&) {
    return false;
  }
}

// Unlike run_simulated in accel_run.cpp, this rethrows: the caller is a program or a test that handles the exception.
void launch_simulated(const LaunchedFunction& function, const std::vector<std::string>& arguments, int num_ranks) {
  const programs::Rehearsal rehearsal({}, num_ranks);
  const auto report = programs::run_threads(rehearsal, collective_timeout(), [&](RankContext&) {
    const int code = function(arguments);
    if (code != 0) throw Error(fmt::format("the launched function returned {}", code));
  });
  if (report.error) std::rethrow_exception(report.error);
}

// The launched function reads its options from the environment, as a program under `accel launch` does. mixed_precision
// "no" is not exported, so that a value that the user has exported still counts.
std::map<std::string, std::string> variables_of(const std::string& name, const std::vector<std::string>& arguments,
                                                const NotebookLauncherOptions& options) {
  std::map<std::string, std::string> variables{
      {kLaunchRequestVariable, LaunchRequest{{"name", name}, {"arguments", arguments}}.dump()}};
  if (options.mixed_precision != "no") variables["ACCELERATE_MIXED_PRECISION"] = options.mixed_precision;
  if (options.use_cpu) variables["ACCELERATE_USE_CPU"] = "true";
  return variables;
}

void check_options(const NotebookLauncherOptions& options) {
  const auto& precision = options.mixed_precision;
  check_config(is_mixed_precision(precision), "launch: mixed_precision: expected {}, got '{}'",
               fmt::join(kMixedPrecisions, ", "), precision);
  check_config(!options.simulate || (precision == "no" && options.num_nodes == 1 && options.max_restarts == 0),
               "launch: simulate does not support mixed_precision, num_nodes and max_restarts: simulated ranks run "
               "once, in one process; leave these options out, and pass mixed_precision to the Accelerator");
  check_config(options.max_restarts >= 0 && options.monitor_interval > 0,
               "launch: max_restarts {} and monitor_interval {}; expected max_restarts >= 0 and monitor_interval > 0",
               options.max_restarts, options.monitor_interval);
  check_config(options.num_nodes == 1 || options.use_port.value_or(0) > 0,
               "launch: {} machines, but no use_port; set use_port to the same port on every machine",
               options.num_nodes);
}

// On one machine a port is checked or chosen here; the claim must be kept during the job. On several, only machine 0
// listens, so the others cannot check it, and all must agree on it in advance.
std::unique_ptr<launcher::PortClaim> claim_port(const NotebookLauncherOptions& options) {
  const int port = options.use_port.value_or(0);
  check_config(port >= 0 && port <= 65535, "launch: use_port: {} is not a port; expected 0 to 65535", port);
  if (options.num_nodes > 1) return nullptr;
  auto claim = std::make_unique<launcher::PortClaim>(port);
  check_config(claim->holds(),
               "launch: use_port: port {} is in use; choose another one, or leave use_port out to get a free one",
               port);
  return claim;
}

}  // namespace

Launchable::Launchable(std::string name, LaunchedFunction function) {
  const auto [place, is_new] = launchables().emplace(std::move(name), std::move(function));
  check_config(is_new, "launch: two functions are registered as '{}'; give each a unique name", place->first);
}

// Everything is checked before a process starts. num_processes counts per machine, as in Python's notebook_launcher.
void launch(const std::string& name, const std::vector<std::string>& arguments,
            const NotebookLauncherOptions& options) {
  check_state(!environment(kLaunchRequestVariable),
              "launch: called in a process that launch has started; call accel::run_launched() first in main");
  check_state(!is_rank_thread(),
              "launch: called on a thread that runs a rank; call it from main, outside of accel::run");
  const auto& function = find_launchable(name);
  check_options(options);
  const int per_machine =
      options.num_processes.value_or(options.use_cpu || options.simulate ? 1 : std::max(1, nccl::num_gpus()));
  check_config(per_machine >= 1 && options.num_nodes >= 1,
               "launch: num_processes {} on {} machines; expected 1 or more", per_machine, options.num_nodes);
  if (options.simulate) {
    launch_simulated(function, arguments, per_machine);
    return;
  }
  const auto claim = claim_port(options);
  const auto result = launcher::run_job(
      {.command = {std::filesystem::read_symlink("/proc/self/exe").string()},
       .machines = {.num_machines = options.num_nodes,
                    .machine_rank = options.node_rank,
                    .num_processes = per_machine * options.num_nodes,
                    .main_address = options.master_addr,
                    .main_port = claim ? claim->port() : *options.use_port,
                    .max_restarts = options.max_restarts,
                    .secret = launch_secret()},
       .environment = variables_of(name, arguments, options),
       // A default, not a setting: OMP_NUM_THREADS of the user's environment still wins.
       .default_environment = {{"OMP_NUM_THREADS", "1"}},  // ranks share the cores
       .monitor_interval = std::chrono::milliseconds(std::max(1LL, std::llround(1000 * options.monitor_interval))),
       .prefix = ""});
  const auto& failure = result.failure;
  if (failure.exit_code == programs::kUsage)
    throw ConfigError(fmt::format("launch of '{}': {}", name, failure.message));
  if (failure.exit_code != 0) throw Error(fmt::format("launch of '{}': {}", name, failure.message));
}

void launch(const std::string& name, const std::vector<std::string>& arguments, int num_processes) {
  launch(name, arguments, {.num_processes = num_processes});
}

void notebook_launcher(const std::string& name, const std::vector<std::string>& arguments,
                       const NotebookLauncherOptions& options) {
  launch(name, arguments, options);
}

void debug_launcher(const std::string& name, const std::vector<std::string>& arguments, int num_processes) {
  launch(name, arguments, {.num_processes = num_processes, .use_cpu = true});
}

void run_launched() {
  // Taking the variable removes it, so that processes that the function starts do not run the function again.
  const auto text = take_environment(kLaunchRequestVariable);
  if (!text) return;
  try {
    const auto request = LaunchRequest::parse(*text);
    const auto& function = find_launchable(request.at("name").get<std::string>());
    const auto arguments = request.at("arguments").get<std::vector<std::string>>();
    // The process ends here, so main of the launched program never runs past its first line. The function has its own
    // arguments, so argc and argv are not used.
    std::exit(run(0, nullptr, [&](int, char**) { return function(arguments); }));
  } catch (const std::exception& error) {
    std::cerr << "error: " << message_of(error) << std::endl;
    std::exit(programs::exit_code_of(error));
  }
}

}  // namespace accel
