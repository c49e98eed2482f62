// `accel launch`: collects what a launch depends on (files, variables, GPUs, ports) and executes the plan. All
// decisions are made in launch_plan.cpp, which is pure, so that they are tested without starting processes.

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string_view>

#include <fmt/ranges.h>

#include "backends/launch/cpu_plan.hpp"
#include "backends/launch/output_writer.hpp"
#include "backends/launch/ports.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/diagnosis/diagnosis_json.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/job_timeline.hpp"
#include "sim/programs/accel/launch_plan.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/user_program.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsageText =
    "accel launch [flags] PROGRAM [ARGS...]\n\n"
    "Starts a program that calls accel::run: as one process per rank on this machine, as this machine's part of a job "
    "on several\n"
    "machines, or on simulated ranks. Precedence: flag, config file, environment variable, default.\n\n";

// A file named by a flag must exist; the default file is optional.
std::optional<LaunchConfig> read_config(const LaunchFlags& flags) {
  if (const auto file = flags.text("config_file")) return read_launch_config(*file);
  const auto file = default_config_file();
  return reads_default_file(flags) && fs::exists(file) ? std::optional(read_launch_config(file)) : std::nullopt;
}

// The hostfile is read only to check it and to find the first host; mpirun reads it again.
std::string read_text(const std::string& file) {
  std::ifstream in(file);
  check_config(static_cast<bool>(in), "--mpirun_hostfile: {}: no such file", file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns whether the mpirun on the PATH is that of Open MPI, whose options differ from those of MPICH and Intel MPI.
// OpenRTE is the name of Open MPI's run-time environment, which some versions print instead.
bool has_open_mpi() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen("mpirun --version 2>/dev/null", "re"), &pclose);
  std::string text;
  std::array<char, 256> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) text += line.data();
  check_config(!text.empty(),
               "--mpirun_hostfile: mpirun is not on the PATH; on Debian run apt-get install openmpi-bin");
  return text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos;
}

// mpirun and the hostfile are only examined if they are used, since starting mpirun takes a noticeable time.
LaunchInputs gather_launch_inputs(const LaunchFlags& flags) {
  LaunchInputs around{.config = read_config(flags),
                      .variable = &environment,
                      .num_gpus = nccl::num_gpus(),
                      .num_cores = static_cast<int>(launcher::cpus_of_this_process().size())};
  if (const auto file = hostfile_of(flags, around.config.value_or(LaunchConfig()))) {
    around.hosts = parse_hostfile(read_text(*file));
    check_config(!around.hosts.empty(), "--mpirun_hostfile: {}: contains no host; expected one host per line", *file);
    around.has_open_mpi = has_open_mpi();
  }
  return around;
}

// Simulated ranks use sim-run's machinery in this process. Defaults are only set if the environment lacks them, as a
// real launch does in each rank's process.
int run_simulated(const LaunchPlan& plan) {
  auto variables = plan.job.environment;
  for (const auto& [name, value] : plan.job.default_environment) {
    if (!environment(name)) variables[name] = value;
  }
  return run_user_program({.options = {"--ranks", std::to_string(plan.num_ranks), "--quiet"},
                           .command = plan.job.command,
                           .environment = variables});
}

// Chooses or checks the port of a job on one machine. Only rank 0 opens it, seconds after the start, so a port in use
// is reported here, before anything runs. The returned claim must be kept during the job.
std::unique_ptr<launcher::PortClaim> choose_port(LaunchPlan& plan) {
  auto& machines = plan.job.machines;
  if (machines.num_machines > 1 || !plan.job.has_rank_variables) return nullptr;
  auto claim = std::make_unique<launcher::PortClaim>(machines.main_port);
  check_config(claim->holds() || plan.may_change_port,
               "main_process_port: port {} is in use; choose another one, or 0 or nothing to get a free one",
               machines.main_port);
  if (!claim->holds()) claim = std::make_unique<launcher::PortClaim>(0);
  machines.main_port = claim->port();
  return claim;
}

// The shell command that shows the same on simulated ranks. A rank that may only have been slow never comes to the call
// that the others wait in: by its program, or by a planned fault if only the machine was slow.
std::string command_on_simulated_ranks(LaunchPlan plan, const launcher::JobResult& result) {
  plan.way = LaunchPlan::Way::kSimulated;
  std::string first;
  if (result.is_suspected && result.diagnosis.group == "world") {
    std::vector<std::string> faults;
    for (const int rank : result.diagnosis.ranks) {
      faults.push_back(
          fmt::format("{{kind: rank_hang, rank: {}, when: {{collective: {}}}}}", rank, result.diagnosis.sequence));
    }
    first = fmt::format("echo 'faults: [{}]' > hang.yaml; ", fmt::join(faults, ", "));
    plan.sim_options = " --faults hang.yaml";
    plan.job.environment["ACCEL_TIMEOUT_SECONDS"] =
        std::to_string(std::chrono::ceil<std::chrono::seconds>(plan.job.watch.hang_after).count());
  }
  const auto line = describe(plan);
  return first + line.substr(0, line.find('\n'));
}

void write_job_timeline(const LaunchPlan& plan, const launcher::JobResult& result, const std::string& name) {
  std::ostringstream text;
  sim::write_timeline(text, timeline_of(result.calls), sim::timeline_format_of(plan.timeline));
  write_text(plan.timeline, text.str());
  if (result.num_missed_calls == 0 || plan.quiet) return;
  std::cerr << fmt::format("{}: warning: --timeline: {} calls are missing: the ranks made too many in a short time\n",
                           name, result.num_missed_calls);
}

// Exit code 2 of a rank means a wrong configuration, which a user can correct; a diagnosis of its own is 3; all other
// failures become 1.
int run_processes(const LaunchPlan& plan, const std::string& name) {
  const auto result = launcher::run_job(plan.job);
  if (!plan.diagnosis.empty()) write_text(plan.diagnosis, diagnosis_json(result.diagnosis) + "\n");
  if (!plan.timeline.empty()) write_job_timeline(plan, result, name);
  const auto& failure = result.failure;
  if (failure.exit_code == 0) return kSuccess;
  const auto restarts =
      result.restarts == 0 ? "" : fmt::format(" (after {} restart{})", result.restarts, result.restarts > 1 ? "s" : "");
  const bool is_diagnosed = launcher::is_diagnosis(failure);
  if (!plan.quiet) {
    const auto again =
        is_diagnosed ? "\n  the same on simulated ranks: " + command_on_simulated_ranks(plan, result) : "";
    launcher::print_last_line(fmt::format("{}: {}{}{}", name, failure.message, restarts, again));
  }
  if (is_diagnosed) return kDiagnosed;
  return failure.exit_code == kUsage ? kUsage : kFailure;
}

}  // namespace

int run_launch(const LaunchFlags& flags, const std::string& name) {
  auto plan = plan_launch(flags, gather_launch_inputs(flags));
  if (!plan.quiet) {
    for (const auto& warning : plan.warnings) std::cerr << name << ": warning: " << warning << std::endl;
  }
  if (plan.dry_run) {
    std::cout << describe(plan);
    return kSuccess;
  }
  std::vector<std::string> problems;
  for (const auto& [flag, file] : {std::pair("diagnosis", plan.diagnosis), {"timeline", plan.timeline}}) {
    if (const auto problem = problem_of_output(file); !problem.empty())
      problems.push_back(fmt::format("--{}: {}", flag, problem));
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  if (plan.way == LaunchPlan::Way::kSimulated) return run_simulated(plan);
  if (plan.job.machines.num_machines > 1) plan.job.machines.secret = launch_secret();
  const auto claim = choose_port(plan);
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
