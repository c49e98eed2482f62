#include "sim/programs/accel/launch_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <sstream>

#include "reference/config/environment.hpp"
#include "reference/config/launch_keys.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr int kDefaultPort = 29500;
constexpr const char* kSteps = "gradient_accumulation_steps";

// The section of the file that a flag is a key of, and what has to be used for it to count.
struct SectionOfFlags {
  const char* name;
  const char* flag;
  ConfigSection LaunchConfig::*section;
};
constexpr SectionOfFlags kSections[] = {
    {"fsdp_config", "use_fsdp", &LaunchConfig::fsdp_config},
    {"deepspeed_config", "use_deepspeed", &LaunchConfig::deepspeed_config},
    {"parallelism_config", "use_parallelism_config", &LaunchConfig::parallelism_config},
    {"fp8_config", "mixed_precision fp8", &LaunchConfig::fp8_config}};

class Planner {
 public:
  Planner(const LaunchFlags& flags, const LaunchSurroundings& surroundings)
      : flags_(flags), around_(surroundings), config_(surroundings.config.value_or(LaunchConfig())) {}

  LaunchPlan plan() {
    check_exclusive();
    apply_kind();
    apply_values();
    apply_sections();
    for (auto& problem : problems_of(config_)) problems_.push_back(std::move(problem));
    check_rendezvous();
    set_machines();
    set_environment();
    set_output();
    if (flags_.has("sim")) plan_.way = LaunchPlan::Way::kSimulated;
    if (hostfile()) set_mpirun();
    check_config(problems_.empty(), "{}", fmt::join(problems_, "\n"));
    return plan_;
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_exclusive() {
    std::vector<std::string> given;
    for (const auto* name : {"cpu", "multi_gpu", "sim"}) {
      if (flags_.has(name)) given.push_back(std::string("--") + name);
    }
    if (given.size() > 1) problem("{} exclude each other; give the one that is meant", fmt::join(given, ", "));
    if (flags_.has("use_fsdp") && flags_.has("use_deepspeed"))
      problem("--use_fsdp, --use_deepspeed exclude each other; give the one that is to shard the model");
    if (flags_.has("sim") && flags_.has("mpirun_hostfile"))
      problem("--sim: simulated ranks are of one process; leave --mpirun_hostfile out");
    if (flags_.has("sim") && flags_.integer("num_machines").value_or(1) > 1)
      problem("--sim: simulated ranks are of one process; leave --num_machines out");
    if (flags_.has("sim"))
      refuse("sim", "simulated ranks are of one process, which writes its output itself and begins once",
             {"max_restarts", "log_dir", "tee", "role", "rdzv_conf", "enable_cpu_affinity"});
    if (hostfile())
      refuse("mpirun_hostfile", "mpirun places the ranks and writes their output",
             {"log_dir", "tee", "role", "rdzv_conf"});
  }

  // A flag that would be lost.
  void refuse(const char* way, const char* reason, std::initializer_list<const char*> names) {
    for (const auto* name : names) {
      if (flags_.has(name)) problem("--{}: of no use with --{}: {}", name, way, reason);
    }
  }

  void apply_kind() {
    if (flags_.has("use_fsdp")) config_.distributed_type = "FSDP";
    if (flags_.has("use_deepspeed")) config_.distributed_type = "DEEPSPEED";
    if (flags_.has("multi_gpu")) {  // beats the file's kind, as in Accelerate
      config_.use_cpu = false;
      if (!flags_.has("use_fsdp") && !flags_.has("use_deepspeed")) config_.distributed_type = "MULTI_GPU";
    }
    const bool shards = config_.distributed_type == "FSDP" || config_.distributed_type == "DEEPSPEED";
    if (flags_.has("cpu") || config_.distributed_type == "MULTI_CPU") {
      config_.use_cpu = true;
      if (!shards) config_.distributed_type = "MULTI_CPU";
    }
    if (const auto asks = around_.variable("ACCELERATE_USE_CPU"); asks && !around_.config && !flags_.has("multi_gpu"))
      config_.use_cpu = config_.use_cpu || flag_of(*asks).value_or(false);
  }

  void apply_values() {
    const auto set_text = [&](const char* name, auto& value) {
      if (const auto text = flags_.text(name)) value = *text;
    };
    const auto set_integer = [&](const char* name, auto& value) {
      if (const auto number = flags_.integer(name)) value = *number;
    };
    set_text("mixed_precision", config_.mixed_precision);
    set_text("gpu_ids", config_.gpu_ids);
    set_text("main_process_ip", config_.main_process_ip);
    set_text("rdzv_backend", config_.rdzv_backend);
    set_integer("main_process_port", config_.main_process_port);
    set_integer("num_machines", config_.num_machines);
    set_integer("machine_rank", config_.machine_rank);
    for (const auto* name : {"num_processes", "num_machines"}) {
      if (flags_.integer(name).value_or(1) < 1)
        problem("--{}: expected 1 or more, got {}", name, *flags_.integer(name));
    }
    for (const auto& [name, value] : {std::pair("debug", &config_.debug),
                                      {"same_network", &config_.same_network},
                                      {"enable_cpu_affinity", &config_.enable_cpu_affinity}}) {
      if (flags_.has(name)) *value = true;
    }
    if (config_.num_machines > 1 && !config_.main_process_ip) config_.main_process_ip = around_.variable("MASTER_ADDR");
    if (!config_.main_process_port) config_.main_process_port = port_of_environment();
    if (hostfile() && around_.hosts.size() > 1) {
      if (!flags_.has("num_machines") && config_.num_machines == 1)
        config_.num_machines = static_cast<int>(around_.hosts.size());
      if (!config_.main_process_ip) config_.main_process_ip = around_.hosts.front();  // mpirun puts rank 0 there
    }
    config_.num_processes = num_processes();
    if (flags_.has("multi_gpu") && config_.num_processes < 2 && config_.num_machines < 2)
      problem("--multi_gpu: {} process; expected --num_processes 2 or more", config_.num_processes);
  }

  std::optional<int> port_of_environment() {
    const auto text = around_.variable("MASTER_PORT");
    if (!text) return std::nullopt;
    const bool is_number =
        !text->empty() && text->size() <= 5 &&
        std::all_of(text->begin(), text->end(), [](unsigned char letter) { return std::isdigit(letter) != 0; });
    if (!is_number) problem("MASTER_PORT: expected an integer, got '{}'", *text);
    return is_number ? std::optional(std::stoi(*text)) : std::nullopt;
  }

  int num_processes() {
    if (const auto given = flags_.integer("num_processes")) return std::max(*given, 1);
    if (config_.num_processes != -1) return config_.num_processes;
    if (around_.config) {
      problem("num_processes: the config file leaves it to the command line; expected --num_processes N");
      return 1;
    }
    const auto gpus = config_.gpu_ids && *config_.gpu_ids != "all"
                          ? 1 + static_cast<int>(std::count(config_.gpu_ids->begin(), config_.gpu_ids->end(), ','))
                          : around_.num_gpus;
    return std::max(config_.use_cpu || flags_.has("sim") ? 1 : gpus, 1) * std::max(config_.num_machines, 1);
  }

  bool uses_section(ConfigSection LaunchConfig::*section, const std::string& flag) const {
    if (section == &LaunchConfig::parallelism_config) return flags_.has(flag) || !(config_.*section).empty();
    if (section == &LaunchConfig::fp8_config) return config_.mixed_precision == "fp8";
    return config_.distributed_type == (section == &LaunchConfig::fsdp_config ? "FSDP" : "DEEPSPEED");
  }

  // Flags of a section beat its keys in the file. One whose section is not in use would be lost: an error.
  void apply_sections() {
    for (const auto& [name, flag, member] : kSections) {
      const auto& table = section_table(name);
      const bool is_used = uses_section(member, flag);
      for (const auto& key : table.keys) {
        const auto value = flags_.text(key.name);
        if (!value || (key.name == std::string(kSteps) && !is_used)) continue;
        if (is_used)
          (config_.*member)[key.name] = *value;
        else
          problem("--{}: counts with --{} only, or with a config file that has it", key.name, flag);
      }
    }
    const auto version = config_.fsdp_config.find("fsdp_version");
    const bool is_version_2 = config_.distributed_type == "FSDP" && version != config_.fsdp_config.end() &&
                              python_text(version->second) == "2";
    if (flags_.has("use_parallelism_config") && !is_version_2)
      problem("--use_parallelism_config: needs --use_fsdp and --fsdp_version 2");
  }

  void check_rendezvous() {
    if (config_.rdzv_backend != "static")
      problem(
          "rdzv_backend: {}: not built; expected static: machine 0 is told to all by main_process_ip and "
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

  void set_machines() {
    auto& machines = plan_.job.machines;
    machines.num_machines = config_.num_machines;
    machines.machine_rank = config_.machine_rank;
    machines.num_processes = plan_.num_ranks = config_.num_processes;
    const bool are_several = config_.num_machines > 1 || hostfile();
    machines.main_address = are_several ? config_.main_process_ip.value_or("127.0.0.1") : "127.0.0.1";
    machines.main_port = config_.main_process_port.value_or(kDefaultPort);
    machines.max_restarts = flags_.integer("max_restarts").value_or(0);
    plan_.may_change_port = !config_.main_process_port && config_.num_machines == 1;
    if (machines.max_restarts < 0) problem("--max_restarts: expected 0 or more, got {}", machines.max_restarts);
    if (machines.num_processes > launcher::kMaxProcesses)
      problem("num_processes: {}; expected {} or less", machines.num_processes, launcher::kMaxProcesses);
    plan_.job.command = flags_.command;
    plan_.job.monitor_interval =
        std::chrono::milliseconds(std::max(1LL, std::llround(flags_.number("monitor_interval").value_or(0.1) * 1000)));
    plan_.job.pins_cpus = config_.enable_cpu_affinity;
    plan_.job.has_rank_variables = machines.num_processes > 1;
    plan_.job.forwards_output = machines.num_processes > 1 || flags_.has("log_dir") || flags_.has("tee");
  }

  [[nodiscard]] int num_local() const { return std::max(1, config_.num_processes / std::max(config_.num_machines, 1)); }

  // What nobody gave is a default, which a variable of the environment beats.
  [[nodiscard]] bool is_given(const std::string& variable) const {
    if (variable == "ACCELERATE_MIXED_PRECISION") return config_.mixed_precision.has_value();
    if (variable == "ACCELERATE_USE_CPU") return config_.use_cpu || flags_.has("multi_gpu") || around_.config;
    for (const auto& [name, flag, member] : kSections) {
      for (const auto& key : section_table(name).keys) {
        if (key.variable != nullptr && key.variable == variable)
          return (config_.*member).contains(key.name) ||
                 (variable == "FSDP_SHARDING_STRATEGY" && (config_.*member).contains("fsdp_reshard_after_forward"));
      }
    }
    return true;
  }

  // What a DeepSpeed file beside the config file would hide. Flags are to fill the "auto" of one.
  [[nodiscard]] std::string fields_of_file() const {
    if (!around_.config || around_.config->distributed_type != "DEEPSPEED") return "";
    return environment_of(*around_.config).at("ACCELERATE_CONFIG_DS_FIELDS");
  }

  void set_environment() {
    for (const auto& [name, value] : environment_of(config_)) {
      if (name.starts_with("ACCELERATE_DYNAMO_") && config_.dynamo_config.empty())
        continue;  // for Python's compiler; the file may name it
      (is_given(name) ? plan_.job.environment : plan_.job.default_environment)[name] = value;
    }
    if (config_.distributed_type == "DEEPSPEED")
      plan_.job.environment["ACCELERATE_CONFIG_DS_FIELDS"] = fields_of_file();
    if (const auto steps = flags_.text(kSteps))
      plan_.job.environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = *steps;
    const auto threads = flags_.integer("num_cpu_threads_per_process");
    if (threads.value_or(1) < 1) problem("--num_cpu_threads_per_process: expected 1 or more, got {}", *threads);
    if (threads) plan_.job.environment["OMP_NUM_THREADS"] = std::to_string(*threads);
    const int fair = config_.use_cpu && !flags_.has("sim") ? std::max(1, around_.num_cores / num_local()) : 1;
    plan_.job.default_environment["OMP_NUM_THREADS"] = std::to_string(fair);
  }

  void set_output() {
    auto& job = plan_.job;
    plan_.dry_run = flags_.has("dry_run");
    plan_.quiet = flags_.has("quiet");
    job.tells_restarts = !plan_.quiet;
    job.prefix = flags_.has("no_prefix") || config_.num_processes == 1 ? "" : flags_.text("role").value_or("rank");
    job.log_dir = flags_.text("log_dir").value_or("");
    const auto tee = flags_.text("tee").value_or("0");
    if (tee == "0") return;
    if (job.log_dir.empty()) problem("--tee: needs --log_dir DIR, where the files go");
    job.logged.assign(static_cast<std::size_t>(num_local()), 0);
    std::istringstream parts(tee);
    for (std::string part; std::getline(parts, part, ',');) take_tee(part);
  }

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
      problem("--tee: expected 0, 1, 2 or 3, or such for local ranks as in 0:1,1:3, got '{}'", part);
    } else if (is_rank) {
      logged[std::stoul(rank)] = value[0] - '0';
    } else {
      std::fill(logged.begin(), logged.end(), value[0] - '0');
    }
  }

  // --- mpirun --------------------------------------------------------------------------------------------------------

  [[nodiscard]] std::optional<std::string> hostfile() const {
    if (const auto file = flags_.text("mpirun_hostfile")) return file;
    const auto found = config_.mpirun_config.find("mpirun_hostfile");
    return found == config_.mpirun_config.end() || flags_.has("sim") ? std::nullopt
                                                                     : std::optional(python_text(found->second));
  }

  // Ranks get their place from mpirun; what Accelerate leaves to mpirun's habits, each variable is handed on by name.
  void set_mpirun() {
    plan_.way = LaunchPlan::Way::kMpirun;
    auto& job = plan_.job;
    const bool is_open = around_.has_open_mpi;
    std::vector<std::string> command{"mpirun",
                                     is_open ? "--hostfile" : "-f",
                                     *hostfile(),
                                     is_open ? "--npernode" : "-ppn",
                                     std::to_string(num_local()),
                                     "-n",
                                     std::to_string(config_.num_processes)};
    if (is_open)
      command.insert(command.end(),
                     {"--bind-to", config_.enable_cpu_affinity ? "core:overload-allowed" : "socket:overload-allowed"});
    auto variables = job.environment;
    for (const auto& [name, value] : job.default_environment)
      variables.try_emplace(name, around_.variable(name).value_or(value));
    variables["MASTER_ADDR"] = job.machines.main_address;
    variables["MASTER_PORT"] = std::to_string(job.machines.main_port);
    for (const auto& [name, value] : variables) {
      if (is_open)
        command.insert(command.end(), {"-x", name + "=" + value});
      else
        command.insert(command.end(), {"-genv", name, value});
    }
    command.insert(command.end(), job.command.begin(), job.command.end());
    job.command = std::move(command);
    if (config_.num_machines > 1 && job.machines.main_port == 0)
      problem("main_process_port: 0 is any free port, which other machines cannot know");
    const auto restarts = job.machines.max_restarts;
    job.machines = {.max_restarts = restarts};
    job.has_rank_variables = false;
    job.forwards_output = false;
    job.pins_cpus = false;
  }

  const LaunchFlags& flags_;
  const LaunchSurroundings& around_;
  LaunchConfig config_;
  LaunchPlan plan_;
  std::vector<std::string> problems_;
};

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

LaunchPlan plan_launch(const LaunchFlags& flags, const LaunchSurroundings& surroundings) {
  return Planner(flags, surroundings).plan();
}

bool reads_default_file(const LaunchFlags& flags) { return !flags.has("cpu"); }

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

std::string describe(const LaunchPlan& plan) {
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
    if (plan.way == LaunchPlan::Way::kSimulated) text += fmt::format(" sim-run --ranks {} --", plan.num_ranks);
    for (const auto& word : job.command) text += " " + quoted(word);
    text += '\n';
  }
  return text;
}

}  // namespace accel::programs
