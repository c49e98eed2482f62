// Merges flags, config file and environment into one LaunchConfig. The precedence is Accelerate's, which differs by
// key; each deviation from "flag, file, environment, default" is commented where it happens. Source:
// accelerate/commands/launch.py, _validate_launch_command.
#include "sim/programs/accel/launch_settings.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"

namespace accel::programs {
namespace {

// The steps of merge() depend on each other: the kind decides which sections count, and the number of machines must be
// known before num_processes gets its default.
class SettingsMerge {
 public:
  SettingsMerge(const LaunchFlags& flags, const LaunchInputs& surroundings, std::vector<std::string>& problems)
      : flags_(flags),
        around_(surroundings),
        config_(surroundings.config.value_or(LaunchConfig())),
        problems_(problems) {}

  LaunchConfig merge() {
    check_exclusive();
    apply_kind();
    apply_keys();
    apply_machines();
    apply_sections();
    for (auto& problem : problems_of(config_)) problems_.push_back(std::move(problem));
    return config_;
  }

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Flags that contradict each other are errors, and so are flags that would have no effect.
  void check_exclusive() {
    check_alternatives({"cpu", "multi_gpu", "sim"});
    check_alternatives({"use_fsdp", "use_deepspeed", "use_megatron_lm"});
    if (flags_.has("sim") && flags_.has("mpirun_hostfile"))
      problem("--sim: simulated ranks run in one process; leave --mpirun_hostfile out");
    if (flags_.has("sim") && flags_.integer("num_machines").value_or(1) > 1)
      problem("--sim: simulated ranks run in one process; leave --num_machines out");
    if (flags_.has("sim"))
      refuse_beside("sim", "simulated ranks run once, in one process, which writes its output directly");
    if (hostfile_of(flags_, config_))
      refuse_beside("mpirun_hostfile", "mpirun places the ranks and writes their output");
  }

  void check_alternatives(std::initializer_list<const char*> names) {
    std::vector<std::string> given;
    for (const auto* name : names) {
      if (flags_.has(name)) given.push_back(std::string("--") + name);
    }
    if (given.size() > 1) problem("{} exclude each other; give only one of them", fmt::join(given, ", "));
  }

  // Reports flags that would be ignored silently.
  void refuse_beside(std::string_view way, const char* reason) {
    for (const auto& group : launch_groups()) {
      for (const auto& key : group.keys) {
        const auto& ways = key.refused_beside;
        if (flags_.has(key.name) && std::find(ways.begin(), ways.end(), way) != ways.end())
          problem("--{}: has no effect with --{}: {}; leave it out", key.name, way, reason);
      }
    }
  }

  // Sets distributed_type and use_cpu. A type that divides the model survives --cpu, since that works on CPUs as well.
  void apply_kind() {
    if (flags_.has("use_fsdp")) config_.distributed_type = "FSDP";
    if (flags_.has("use_deepspeed")) config_.distributed_type = "DEEPSPEED";
    if (flags_.has("use_megatron_lm")) config_.distributed_type = "MEGATRON_LM";
    const bool names_plugin = flags_.has("use_fsdp") || flags_.has("use_deepspeed") || flags_.has("use_megatron_lm");
    if (flags_.has("multi_gpu")) {  // overrides the distributed_type of the file, as in Accelerate
      config_.use_cpu = false;
      if (!names_plugin) config_.distributed_type = "MULTI_GPU";
    }
    const auto& type = config_.distributed_type;
    const bool divides = type == "FSDP" || type == "DEEPSPEED" || type == "MEGATRON_LM";
    if (flags_.has("cpu") || config_.distributed_type == "MULTI_CPU") {
      config_.use_cpu = true;
      if (!divides) config_.distributed_type = "MULTI_CPU";
    }
    // The variable only counts without a config file: a file always sets use_cpu.
    if (const auto asks = around_.variable("ACCELERATE_USE_CPU"); asks && !around_.config && !flags_.has("multi_gpu"))
      config_.use_cpu = config_.use_cpu || flag_of(*asks).value_or(false);
  }

  void apply_keys() {
    for (const auto& group : launch_groups()) {
      for (const auto& key : group.keys) {
        if (const auto text = flags_.text(key.name)) assign_text(config_, key, *text);
      }
    }
    for (const auto* name : {"num_processes", "num_machines"}) {
      if (flags_.integer(name).value_or(1) < 1)
        problem("--{}: expected 1 or more, got {}", name, *flags_.integer(name));
    }
  }

  // Fills in what neither flags nor the file set about the machines, from the variables that torchrun uses and from the
  // hostfile.
  void apply_machines() {
    if (around_.variable("KUBERNETES_SERVICE_HOST") && !flags_.has("num_machines") && config_.num_machines == 1 &&
        !flags_.has("sim"))
      apply_pod();
    if (config_.num_machines > 1 && !config_.main_process_ip) config_.main_process_ip = around_.variable("MASTER_ADDR");
    if (!config_.main_process_port) config_.main_process_port = integer_of_environment("MASTER_PORT");
    if (hostfile_of(flags_, config_) && around_.hosts.size() > 1) {
      if (!flags_.has("num_machines") && config_.num_machines == 1)
        config_.num_machines = static_cast<int>(around_.hosts.size());
      if (!config_.main_process_ip) config_.main_process_ip = around_.hosts.front();  // mpirun puts rank 0 there
    }
    config_.num_processes = num_processes();
    if (flags_.has("multi_gpu") && config_.num_processes < 2 && config_.num_machines < 2)
      problem("--multi_gpu: expected --num_processes 2 or more, got {}", config_.num_processes);
    if (flags_.has("multi_gpu") && config_.num_machines < 2 && around_.num_gpus == 0)
      problem(
          "--multi_gpu: CUDA finds no GPU on this machine; remove the flag, or check the driver and "
          "CUDA_VISIBLE_DEVICES");
  }

  // In a pod of Kubernetes, RANK and WORLD_SIZE are those of pods, each of which is a machine.
  void apply_pod() {
    const auto rank = integer_of_environment("RANK"), num_pods = integer_of_environment("WORLD_SIZE");
    if (!rank || !num_pods) return;
    config_.num_machines = *num_pods;
    if (!flags_.has("machine_rank")) config_.machine_rank = *rank;
  }

  // Checked here, so that the message names the variable; std::stoi would throw without saying what was wrong.
  std::optional<int> integer_of_environment(const char* name) {
    const auto text = around_.variable(name);
    if (!text) return std::nullopt;
    const bool is_number =
        !text->empty() && text->size() <= 5 &&
        std::all_of(text->begin(), text->end(), [](unsigned char letter) { return std::isdigit(letter) != 0; });
    if (!is_number) problem("{}: expected an integer, got '{}'", name, *text);
    return is_number ? std::optional(std::stoi(*text)) : std::nullopt;
  }

  int num_processes() {
    if (const auto given = flags_.integer("num_processes")) return std::max(*given, 1);
    if (config_.num_processes != -1) return config_.num_processes;
    if (around_.config) {
      problem("num_processes: the config file does not set it; pass --num_processes N");
      return 1;
    }
    // Default: one rank per selected GPU on every machine; without GPUs one rank per machine.
    const auto gpus = config_.gpu_ids && *config_.gpu_ids != "all"
                          ? 1 + static_cast<int>(std::count(config_.gpu_ids->begin(), config_.gpu_ids->end(), ','))
                          : around_.num_gpus;
    return std::max(config_.use_cpu || flags_.has("sim") ? 1 : gpus, 1) * std::max(config_.num_machines, 1);
  }

  // Flags of a section override its keys in the file. A flag whose section is not in use would be ignored, hence an
  // error.
  void apply_sections() {
    for (const auto& section : launch_sections()) {
      if (section.required_flag != nullptr) apply_section(section);
    }
    if (flags_.has("use_parallelism_config") && config_.distributed_type == "MEGATRON_LM")
      problem("--use_parallelism_config: excludes --use_megatron_lm, whose flags set the mesh; leave it out");
  }

  void apply_section(const LaunchSection& section) {
    for (const auto& key : section.keys) {
      const auto value = flags_.text(key.name);
      if (!value) continue;
      // A general flag that is also a key of a section, such as gradient_accumulation_steps, has an effect without it.
      const bool is_section_only_key = find_launch_flag(key.name) == &key;
      if (uses_section(flags_, config_, section))
        (config_.*section.field)[key.name] = *value;
      else if (is_section_only_key)
        problem("--{}: needs --{}, or a config file that enables it{}", key.name, section.required_flag,
                unused_hint(section));
    }
  }

  // A file may have the section, and select another kind of launch.
  [[nodiscard]] std::string unused_hint(const LaunchSection& section) const {
    if ((config_.*section.field).empty()) return "";
    const bool is_float8 = section.field == &LaunchConfig::fp8_config;
    return fmt::format("; the file has {}, but its {} is {}", section.name,
                       is_float8 ? "mixed_precision" : "distributed_type",
                       is_float8 ? config_.mixed_precision.value_or("unset") : config_.distributed_type);
  }

  const LaunchFlags& flags_;
  const LaunchInputs& around_;
  LaunchConfig config_;
  std::vector<std::string>& problems_;
};

}  // namespace

LaunchConfig merge_settings(const LaunchFlags& flags, const LaunchInputs& surroundings,
                            std::vector<std::string>& problems) {
  return SettingsMerge(flags, surroundings, problems).merge();
}

bool uses_section(const LaunchFlags& flags, const LaunchConfig& config, const LaunchSection& section) {
  if (section.field == &LaunchConfig::parallelism_config)
    return flags.has(section.required_flag) || !config.parallelism_config.empty();
  if (section.field == &LaunchConfig::fp8_config) return config.mixed_precision == "fp8";
  if (section.field == &LaunchConfig::mpirun_config) return hostfile_of(flags, config).has_value();
  if (section.field == &LaunchConfig::dynamo_config) return true;
  if (section.field == &LaunchConfig::megatron_lm_config) return config.distributed_type == "MEGATRON_LM";
  return config.distributed_type == (section.field == &LaunchConfig::fsdp_config ? "FSDP" : "DEEPSPEED");
}

// --sim overrides a hostfile in the config file, but together with the flag it is an error (check_exclusive).
std::optional<std::string> hostfile_of(const LaunchFlags& flags, const LaunchConfig& config) {
  if (const auto file = flags.text("mpirun_hostfile")) return file;
  const auto found = config.mpirun_config.find("mpirun_hostfile");
  const bool has_one = found != config.mpirun_config.end() && !flags.has("sim");
  return has_one ? std::optional(python_text(found->second)) : std::nullopt;
}

bool reads_default_file(const LaunchFlags& flags) { return !flags.has("cpu"); }

}  // namespace accel::programs
