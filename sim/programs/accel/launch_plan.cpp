// Turns the merged settings of a launch into a job: which processes to start where, with which variables and output. A
// pure function of flags and LaunchInputs, so that every decision is tested without processes, GPUs or mpirun.
#include "sim/programs/accel/launch_plan.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include "backends/launch/cpu_plan.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::programs {
namespace {

constexpr int kDefaultPort = 29500;  // the default of torchrun and Accelerate

// Collects all problems instead of throwing at the first, so that a command line is corrected once. The steps of plan()
// run in order: set_mpirun replaces parts of the job that the steps before it have filled.
class Planner {
 public:
  Planner(const LaunchFlags& flags, const LaunchInputs& surroundings)
      : flags_(flags), around_(surroundings), config_(merge_settings(flags, surroundings, problems_)) {}

  LaunchPlan plan() {
    check_rendezvous();
    check_unused();
    set_machines();
    set_environment();
    set_output();
    if (flags_.has("sim")) plan_.way = LaunchPlan::Way::kSimulated;
    if (const auto hostfile = hostfile_of(flags_, config_)) set_mpirun(*hostfile);
    check_config(problems_.empty(), "{}", listed(problems_, "\n"));
    return plan_;
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Only the static rendezvous exists here, but the time-outs of torchrun's --rdzv_conf apply to it as well. `timeout`
  // is the name of the join time-out in torchrun's static rendezvous, `join_timeout` in the others.
  void check_rendezvous() {
    if (config_.rdzv_backend != "static")
      problem(
          "rdzv_backend: '{}' is unsupported; expected static, with machine 0 given by main_process_ip and "
          "main_process_port",
          config_.rdzv_backend);
    std::istringstream pairs(flags_.text("rdzv_conf").value_or(""));
    for (std::string pair; std::getline(pairs, pair, ',');) {
      const auto key = pair.substr(0, pair.find('='));
      const auto value = pair.find('=') == std::string::npos ? "" : pair.substr(pair.find('=') + 1);
      double seconds = 0;
      std::istringstream(value) >> seconds;
      const auto time = std::chrono::milliseconds(std::llround(seconds * 1000));
      auto& machines = plan_.job.machines;
      if (key != "join_timeout" && key != "timeout" && key != "keep_alive_interval" &&
          key != "keep_alive_max_attempt") {
        problem("--rdzv_conf: {}: unknown key; expected join_timeout, keep_alive_interval or keep_alive_max_attempt",
                key);
      } else if (!(seconds > 0)) {
        problem("--rdzv_conf: {}: expected a number above 0, got '{}'", key, value);
      } else if (key == "keep_alive_interval") {
        machines.alive_interval = time;
      } else if (key == "keep_alive_max_attempt") {
        machines.alive_missed_max = static_cast<int>(std::ceil(seconds));
      } else {
        machines.join_timeout = time;
      }
    }
  }

  // Ranks themselves report values of the file that reach them in variables: see unused_variables.
  void check_unused() {
    for (const auto& section : launch_sections()) {
      if (!uses_section(flags_, config_, section)) continue;
      for (const auto& [name, value] : config_.*section.field) {
        const auto* key = find_key(section, name);
        const auto* reason = key == nullptr ? nullptr : unused_reason(section, *key);
        if (reason == nullptr) continue;
        const bool is_flag = flags_.has(key->name);
        if (is_harmless(*key, value, /*allows_fallback=*/!is_flag)) continue;
        if (is_flag)
          problem("--{}: has no effect: {}; leave it out", key->name, reason);
        else if (key->is_refused)
          problem("config file: {}: {}; remove it", key->name, reason);
        else if (key->variable == nullptr || key->kind == KeyKind::kFlags)
          plan_.warnings.push_back(fmt::format("config file: {}: has no effect: {}", key->name, reason));
      }
    }
    for (const auto& [name, entry] : file_entries()) {
      if (entry.key == nullptr || entry.key->unused_reason == nullptr) continue;
      if (!std::visit([&](auto member) { return is_usual(member); }, entry.field))
        plan_.warnings.push_back(fmt::format("config file: {}: has no effect: {}", name, entry.key->unused_reason));
    }
  }

  // Accelerate's `config` writes "no" and empty lists where a program would leave the key out.
  [[nodiscard]] static bool is_usual(std::monostate /*none*/) { return true; }
  template <typename T>
  [[nodiscard]] bool is_usual(T LaunchConfig::*member) const {
    const auto& value = config_.*member;
    if constexpr (std::same_as<T, std::variant<bool, std::string>>) {
      if (value == T(std::string("no"))) return true;
    } else if constexpr (std::same_as<T, std::optional<std::vector<std::string>>>) {
      if (value && value->empty()) return true;
    }
    return value == LaunchConfig().*member;
  }

  // A single machine uses the loopback address regardless of the file: a name that resolves to an external address
  // could be unreachable. A port is only changed if the user has not chosen one, and only on one machine, where no
  // other machine needs to know it.
  void set_machines() {
    auto& machines = plan_.job.machines;
    machines.num_machines = config_.num_machines;
    machines.machine_rank = config_.machine_rank;
    machines.num_processes = plan_.num_ranks = config_.num_processes;
    const bool are_several = config_.num_machines > 1 || hostfile_of(flags_, config_);
    machines.main_address = are_several ? config_.main_process_ip.value_or("127.0.0.1") : "127.0.0.1";
    machines.main_port = config_.main_process_port.value_or(kDefaultPort);
    machines.max_restarts = flags_.integer("max_restarts").value_or(0);
    plan_.may_change_port = !config_.main_process_port && config_.num_machines == 1;
    if (machines.max_restarts < 0) problem("--max_restarts: expected 0 or more, got {}", machines.max_restarts);
    if (machines.num_processes > launcher::kMaxProcesses)
      problem("num_processes: {}; expected {} or less", machines.num_processes, launcher::kMaxProcesses);
    plan_.job.command = flags_.command;
    plan_.job.monitor_interval = milliseconds_of("monitor_interval", 0.1);
    plan_.job.watch.hang_after = milliseconds_of("hang_seconds", 60);
    plan_.job.watch.stops_on_suspicion = flags_.text("on_hang").value_or("warn") == "stop";
    plan_.diagnosis = flags_.text("diagnosis").value_or("");
    plan_.timeline = flags_.text("timeline").value_or("");
    plan_.job.logs_calls = !plan_.timeline.empty();
    plan_.job.pins_cpus = config_.enable_cpu_affinity;
    plan_.job.has_rank_variables = machines.num_processes > 1;
    plan_.job.forwards_output = machines.num_processes > 1 || flags_.has("log_dir") || flags_.has("tee");
  }

  [[nodiscard]] std::chrono::milliseconds milliseconds_of(const std::string& flag, double default_seconds) const {
    return std::chrono::milliseconds(std::max(1LL, std::llround(flags_.number(flag).value_or(default_seconds) * 1000)));
  }

  // Ranks on this machine. Never 0, because invalid numbers are reported elsewhere and must not cause a division by
  // zero.
  [[nodiscard]] int num_local() const { return std::max(1, config_.num_processes / std::max(config_.num_machines, 1)); }

  // Values from flags or the file override the environment; defaults do not. ACCELERATE_USE_CPU counts as given
  // whenever the user has chosen a device in any way.
  [[nodiscard]] bool is_given(const std::string& name, const LaunchVariable& variable) const {
    if (name == "ACCELERATE_USE_CPU") return config_.use_cpu || flags_.has("multi_gpu") || around_.config;
    return variable.is_given || name.starts_with("ACCELERATE_DYNAMO_");
  }

  // Returns the DeepSpeed fields that the config file sets. A DeepSpeed JSON file would silently replace them, so the
  // rank reports the conflict. Flags do not conflict: they fill the values that the JSON file sets to "auto". Source:
  // accelerate/utils/dataclasses.py, DeepSpeedPlugin.
  [[nodiscard]] std::string deepspeed_fields_of_file() const {
    if (!around_.config || around_.config->distributed_type != "DEEPSPEED") return "";
    return environment_of(*around_.config).at("ACCELERATE_CONFIG_DS_FIELDS");
  }

  void set_environment() {
    auto& given = plan_.job.environment;
    auto& defaults = plan_.job.default_environment;
    for (const auto& [name, variable] : variables_of(config_)) {
      if (name.starts_with("ACCELERATE_DYNAMO_") && config_.dynamo_config.empty())
        continue;  // only meaningful to Python's compiler, and set only if the file names it
      (is_given(name, variable) ? given : defaults)[name] = variable.text;
    }
    if (config_.distributed_type == "DEEPSPEED") given["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields_of_file();
    for (const auto& group : launch_groups()) {
      for (const auto& key : group.keys) set_variable_of_flag(key);
    }
    const auto threads = flags_.integer("num_cpu_threads_per_process");
    if (threads.value_or(1) < 1) problem("--num_cpu_threads_per_process: expected 1 or more, got {}", *threads);
    // Real CPU ranks share the cores equally, as in Accelerate. GPU ranks and simulated ones use 1: simulated ranks are
    // many, and their parallel work goes to a common arena.
    const int fair = config_.use_cpu && !flags_.has("sim") ? std::max(1, around_.num_cores / num_local()) : 1;
    defaults["OMP_NUM_THREADS"] = std::to_string(fair);
  }

  // Sets the variable of a flag that is not a key of the config file; variables_of covers the keys.
  void set_variable_of_flag(const LaunchKey& key) {
    if (key.variable == nullptr || !flags_.has(key.name) || !std::holds_alternative<std::monostate>(key.field)) return;
    plan_.job.environment[key.variable] =
        key.kind == KeyKind::kInt ? std::to_string(*flags_.integer(key.name)) : flags_.text(key.name).value_or("");
  }

  // One rank needs no prefix to tell lines apart, and its output then stays byte for byte what the program writes.
  void set_output() {
    auto& job = plan_.job;
    plan_.dry_run = flags_.has("dry_run");
    plan_.quiet = flags_.has("quiet");
    job.prints_restarts = !plan_.quiet;
    job.prefix = flags_.has("no_prefix") || config_.num_processes == 1 ? "" : flags_.text("role").value_or("rank");
    job.log_dir = flags_.text("log_dir").value_or("");
    const auto tee = flags_.text("tee").value_or("0");
    if (tee == "0") return;
    if (job.log_dir.empty()) problem("--tee: needs --log_dir DIR for its files");
    job.logged.assign(static_cast<std::size_t>(num_local()), 0);
    std::istringstream parts(tee);
    for (std::string part; std::getline(parts, part, ',');) take_tee(part);
  }

  // One part of torchrun's --tee syntax: a value for all local ranks, or RANK:VALUE. Bit 0 is stdout and bit 1 stderr.
  void take_tee(const std::string& part) {
    const auto colon = part.find(':');
    const auto value = colon == std::string::npos ? part : part.substr(colon + 1);
    const auto rank = colon == std::string::npos ? "" : part.substr(0, colon);
    const bool is_rank =
        !rank.empty() && rank.size() <= 4 &&
        std::all_of(rank.begin(), rank.end(), [](unsigned char letter) { return std::isdigit(letter) != 0; });
    auto& logged = plan_.job.logged;
    if (value.size() != 1 || value[0] < '0' || value[0] > '3' ||
        (colon != std::string::npos && (!is_rank || std::stoul(rank) >= logged.size()))) {
      problem("--tee: expected 0, 1, 2 or 3, or one of these per local rank as in 0:1,1:3, got '{}'", part);
    } else if (is_rank) {
      logged[std::stoul(rank)] = value[0] - '0';
    } else {
      std::fill(logged.begin(), logged.end(), value[0] - '0');
    }
  }

  // Replaces the job by a single mpirun process. mpirun places the ranks, and each rank derives its own variables from
  // those of MPI, so everything about ranks is removed from the job, and settings travel in mpirun's options.
  void set_mpirun(const std::string& hostfile) {
    plan_.way = LaunchPlan::Way::kMpirun;
    auto& job = plan_.job;
    auto variables = job.environment;
    for (const auto& [name, value] : job.default_environment)
      variables.try_emplace(name, around_.variable(name).value_or(value));
    if (config_.enable_cpu_affinity) variables[launcher::kIsPinned] = "1";
    variables["MASTER_ADDR"] = job.machines.main_address;
    variables["MASTER_PORT"] = std::to_string(job.machines.main_port);
    auto command = mpirun_command({.hostfile = hostfile,
                                   .num_per_host = num_local(),
                                   .num_ranks = config_.num_processes,
                                   .is_open_mpi = around_.has_open_mpi,
                                   .binds_to_cores = config_.enable_cpu_affinity},
                                  variables);
    command.insert(command.end(), job.command.begin(), job.command.end());
    job.command = std::move(command);
    if (config_.num_machines > 1 && job.machines.main_port == 0)
      problem("main_process_port: 0 selects a free port, which other machines cannot know; expected a fixed port");
    const auto restarts = job.machines.max_restarts;
    job.machines = {.max_restarts = restarts};
    job.has_rank_variables = false;
    job.forwards_output = false;
    job.pins_cpus = false;
  }

  const LaunchFlags& flags_;
  const LaunchInputs& around_;
  std::vector<std::string> problems_;
  LaunchConfig config_;
  LaunchPlan plan_;
};

// The inverse of what a POSIX shell does with a word, so that --dry_run prints lines that can be executed.
std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view("_-+=.,:/@%").find(static_cast<char>(letter)) != std::string_view::npos;
  });
  if (is_plain) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace

std::vector<std::string> mpirun_command(const MpirunOptions& options,
                                        const std::map<std::string, std::string>& variables) {
  // Accelerate passes no variables to mpirun and relies on its defaults, under which Open MPI does not pass them to
  // other hosts. Source: accelerate/utils/launch.py, prepare_simple_launcher_cmd_env.
  const bool is_open = options.is_open_mpi;
  std::vector<std::string> command{"mpirun",
                                   is_open ? "--hostfile" : "-f",
                                   options.hostfile,
                                   is_open ? "--npernode" : "-ppn",
                                   std::to_string(options.num_per_host),
                                   "-n",
                                   std::to_string(options.num_ranks)};
  if (is_open)
    command.insert(command.end(),
                   {"--bind-to", options.binds_to_cores ? "core:overload-allowed" : "socket:overload-allowed"});
  for (const auto& [name, value] : variables) {
    if (is_open)
      command.insert(command.end(), {"-x", name + "=" + value});
    else
      command.insert(command.end(), {"-genv", name, value});
  }
  return command;
}

// Only the names matter here: mpirun reads the file itself, including slots.
std::vector<std::string> parse_hostfile(const std::string& text) {
  std::vector<std::string> hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string host;
    std::istringstream(line.substr(0, line.find('#'))) >> host;
    host = host.substr(0, host.find(':'));
    if (!host.empty()) hosts.push_back(host);
  }
  return hosts;
}

LaunchPlan plan_launch(const LaunchFlags& flags, const LaunchInputs& surroundings) {
  return Planner(flags, surroundings).plan();
}

std::string describe(const LaunchPlan& plan) {
  // For --dry_run: lines that can be pasted into a shell, with the variables as each rank would see them.
  std::string text;
  const auto& job = plan.job;
  const int count =
      plan.way == LaunchPlan::Way::kProcesses ? job.machines.num_processes / job.machines.num_machines : 1;
  for (int local = 0; local < count; ++local) {
    auto variables = job.environment;
    for (const auto& [name, value] : job.default_environment)
      variables.try_emplace(name, environment(name).value_or(value));
    if (job.has_rank_variables && plan.way == LaunchPlan::Way::kProcesses)
      variables.merge(
          launcher::rank_variables(job.machines, {0, job.machines.max_restarts, job.machines.main_port}, local));
    text += "env";
    for (const auto& [name, value] : variables) text += " " + quoted(name + "=" + value);
    if (plan.way == LaunchPlan::Way::kSimulated)
      text += fmt::format(" sim-run --ranks {}{} --", plan.num_ranks, plan.sim_options);
    for (const auto& word : job.command) text += " " + quoted(word);
    text += '\n';
  }
  return text;
}

}  // namespace accel::programs
