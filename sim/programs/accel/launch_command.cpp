#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string_view>

#include "backends/launch/cpu_plan.hpp"
#include "backends/launch/ports.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/launch_plan.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/user_program.hpp"
#include "sim/programs/runtime/exit_code.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsageText =
    "accel launch [flags] PROGRAM [ARGS...]\n\n"
    "Starts a program that calls accel::run: one process per rank on this machine, or its part of a job of several "
    "machines, or\n"
    "simulated ranks. A flag beats the config file, the file the environment, the environment the default.\n\n";

std::optional<LaunchConfig> read_config(const LaunchFlags& flags) {
  if (const auto file = flags.text("config_file")) return read_launch_config(*file);
  const auto file = default_config_file();
  return reads_default_file(flags) && fs::exists(file) ? std::optional(read_launch_config(file)) : std::nullopt;
}

std::string read_text(const std::string& file) {
  std::ifstream in(file);
  check_config(static_cast<bool>(in), "--mpirun_hostfile: {}: no such file", file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Whose mpirun is on the PATH.
bool has_open_mpi() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen("mpirun --version 2>/dev/null", "re"), &pclose);
  std::string text;
  std::array<char, 256> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) text += line.data();
  check_config(!text.empty(), "--mpirun_hostfile: no mpirun on the PATH; on Debian, apt-get install openmpi-bin");
  return text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos;
}

LaunchSurroundings look_around(const LaunchFlags& flags) {
  LaunchSurroundings around{.config = read_config(flags),
                            .variable = &environment,
                            .num_gpus = nccl::num_gpus(),
                            .num_cores = static_cast<int>(launcher::cpus_of_this_process().size())};
  if (const auto file = hostfile_of(flags, around.config.value_or(LaunchConfig()))) {
    around.hosts = parse_hostfile(read_text(*file));
    check_config(!around.hosts.empty(), "--mpirun_hostfile: {}: names no host", *file);
    around.has_open_mpi = has_open_mpi();
  }
  return around;
}

int run_simulated(const LaunchPlan& plan) {
  auto variables = plan.job.environment;
  for (const auto& [name, value] : plan.job.default_environment) {
    if (!environment(name)) variables[name] = value;
  }
  return run_user_program({.options = {"--ranks", std::to_string(plan.num_ranks), "--quiet"},
                           .command = plan.job.command,
                           .environment = variables});
}

// One machine opens no port of its own until rank 0 does, so a port in use is told before anything runs. The claim is
// to be kept.
std::unique_ptr<launcher::PortClaim> settle_port(LaunchPlan& plan) {
  auto& machines = plan.job.machines;
  if (machines.num_machines > 1 || !plan.job.has_rank_variables) return nullptr;
  if (machines.main_port == 0) machines.main_port = launcher::free_port();
  auto claim = std::make_unique<launcher::PortClaim>(machines.main_port);
  if (claim->holds() && launcher::is_port_free(machines.main_port)) return claim;
  check_config(plan.may_change_port,
               "main_process_port: port {} is in use; choose another, 0 for a free one, or leave it out",
               machines.main_port);
  machines.main_port = launcher::free_port();
  return nullptr;
}

int run_processes(const LaunchPlan& plan, const std::string& name) {
  const auto result = launcher::run_job(plan.job);
  const auto& failure = result.failure;
  if (failure.exit_code == 0) return kSuccess;
  const auto restarts =
      result.restarts == 0 ? "" : fmt::format(" (after {} restart{})", result.restarts, result.restarts > 1 ? "s" : "");
  if (!plan.quiet) std::cerr << name << ": " << failure.message << restarts << std::endl;
  return failure.exit_code == kUsage ? kUsage : kFailure;
}

}  // namespace

int run_launch(const LaunchFlags& flags, const std::string& name) {
  auto plan = plan_launch(flags, look_around(flags));
  if (plan.dry_run) {
    std::cout << describe(plan);
    return kSuccess;
  }
  if (plan.way == LaunchPlan::Way::kSimulated) return run_simulated(plan);
  const auto claim = settle_port(plan);
  return run_processes(plan, name);
}

void list_launch_flags() {
  std::cout << '\t';
  for (const auto& name : launch_flag_names()) std::cout << name << ' ';
  std::cout << '\n';
}

int launch_main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string_view(kListOptions)) {
    list_launch_flags();
    return kSuccess;
  }
  const auto flags = parse_launch_flags({argv + 1, argv + argc});
  if (flags.has("help")) {
    std::cout << kUsageText << launch_flags_help();
    return kSuccess;
  }
  return run_launch(flags, "accel launch");
}

}  // namespace accel::programs
