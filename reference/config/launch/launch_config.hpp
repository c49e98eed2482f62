#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// The configuration file of `accel config` and `accel launch`, compatible with Python's `accelerate config`.
///
///     auto config = accel::read_launch_config(accel::default_config_file());
///     config.num_processes = 4;
///     accel::write_launch_config(config, "four.yaml");
///
/// A written configuration reads back as an equal value, here and in Python. Thread rule: values.
/// Source: accelerate/commands/config/config_args.py, ClusterConfig, with its names and defaults.
namespace accel {

/// A value in a section of a configuration file, with the type that Python reads, so that it is written unchanged.
using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<bool>>;

/// Values by key.
using ConfigSection = std::map<std::string, ConfigValue>;

/// Formats a value like Python's str(): "True", "2", "1.0"; strings are unchanged.
std::string python_text(const ConfigValue& value);

struct LaunchConfig {
  std::string compute_environment = "LOCAL_MACHINE";
  /// NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED, MEGATRON_LM or another type of Accelerate; see problems_of.
  std::string distributed_type = "NO";
  std::optional<std::string> mixed_precision = {};  ///< no, fp16, bf16 or fp8
  bool use_cpu = false;
  bool debug = false;
  int num_processes = -1;  ///< total over all machines; -1: to be set by --num_processes
  int machine_rank = 0;
  int num_machines = 1;
  std::optional<std::string> gpu_ids = {};  ///< "0,2" or "all"
  std::optional<std::string> main_process_ip = {};
  std::optional<int> main_process_port = {};  ///< 0: any free port
  std::string rdzv_backend = "static";
  bool same_network = false;
  std::string main_training_function = "main";
  bool enable_cpu_affinity = false;

  /// By names of flags: fsdp_config["fsdp_version"]. Keys without the prefix "fsdp_", "fp8_" or "dynamo_", and old
  /// keys, are converted to these names. Empty: the file lacks the section.
  ConfigSection fp8_config = {}, deepspeed_config = {}, fsdp_config = {}, parallelism_config = {},
                megatron_lm_config = {}, mpirun_config = {};

  /// Preserved for Python; unused here.
  std::variant<bool, std::string> downcast_bf16 = false;
  std::optional<std::string> tpu_name = {}, tpu_zone = {};
  bool tpu_use_cluster = false, tpu_use_sudo = false;
  std::optional<std::string> command_file = {};
  std::optional<std::vector<std::string>> commands = {}, tpu_vm = {}, tpu_env = {};
  ConfigSection dynamo_config = {};

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

/// Reads a YAML file, or a JSON file if the name ends in .json. Converts keys of older versions: `fp16: true`,
/// `dynamo_backend`. Throws ConfigError, which lists all problems with file and line: a missing distributed_type, an
/// unknown key (with the most similar known key), a wrong type or value, or a configuration for SageMaker.
LaunchConfig read_launch_config(const std::string& file);

/// Returns `config` with the values of flags, by key: {{"num_processes", "4"}, {"fsdp_version", "2"}}.
/// Throws ConfigError that lists all problems: unknown keys and wrong values.
LaunchConfig with_flags(LaunchConfig config, const std::map<std::string, std::string>& flags);

/// Writes a file as Python does: all values that are not None, keys in alphabetical order. Creates the folder.
/// Throws FileError if the file cannot be written.
void write_launch_config(const LaunchConfig& config, const std::string& file);

/// Returns the text of such a file as YAML or JSON.
std::string launch_config_yaml(const LaunchConfig& config);
std::string launch_config_json(const LaunchConfig& config);

/// Returns the settings that this library cannot launch (TPU, devices of other vendors, fp8 by another package) and
/// those that are invalid.
std::vector<std::string> problems_of(const LaunchConfig& config);

/// Returns the environment variables that pass the configuration to a launched program: ACCELERATE_*, FSDP_*,
/// PARALLELISM_CONFIG_*, ... and CUDA_VISIBLE_DEVICES for gpu_ids. The launcher sets the variables of a rank (RANK,
/// MASTER_ADDR, ...) and OMP_NUM_THREADS. Equal to those of Accelerate's launcher, except for settings that the latter
/// loses; see reports/differences.md.
std::map<std::string, std::string> environment_of(const LaunchConfig& config);

/// The same, with a flag whether the configuration sets the value or it is a default.
struct LaunchVariable {
  std::string text;
  bool is_given = true;
};
std::map<std::string, LaunchVariable> variables_of(const LaunchConfig& config);

/// Returns Accelerate's folder: $HF_HOME/accelerate, $XDG_CACHE_HOME/huggingface/accelerate or
/// ~/.cache/huggingface/accelerate, the first whose variable is set.
std::string config_folder();
/// Returns default_config.yaml in that folder, or default_config.json if only that exists.
std::string default_config_file();

}  // namespace accel
