#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// The configuration file of `accel config` and `accel launch`: the one of Python's `accelerate config`, both ways.
///
///     auto config = accel::read_launch_config(accel::default_config_file());
///     config.num_processes = 4;
///     accel::write_launch_config(config, "four.yaml");
///
/// What is written reads as an equal value, here and in Python. Thread rule: values.
/// Source: accelerate/commands/config/config_args.py, ClusterConfig, with its names and defaults.
namespace accel {

/// A value in a section of a configuration file: what Python reads there, so that it can be written as it was.
using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<bool>>;

/// Values by key.
using ConfigSection = std::map<std::string, ConfigValue>;

/// As Python's str() writes it: "True", "2", "1.0", text as it is.
std::string python_text(const ConfigValue& value);

struct LaunchConfig {
  std::string compute_environment = "LOCAL_MACHINE";
  std::string distributed_type =
      "NO";  ///< NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or another of Accelerate's: see problems_of
  std::optional<std::string> mixed_precision = {};  ///< no, fp16, bf16 or fp8
  bool use_cpu = false;
  bool debug = false;
  int num_processes = -1;  ///< on all machines together; -1: to be told by --num_processes
  int machine_rank = 0;
  int num_machines = 1;
  std::optional<std::string> gpu_ids = {};  ///< "0,2" or "all"
  std::optional<std::string> main_process_ip = {};
  std::optional<int> main_process_port = {};  ///< 0: any free one
  std::string rdzv_backend = "static";
  bool same_network = false;
  std::string main_training_function = "main";
  bool enable_cpu_affinity = false;

  /// By the names of flags: fsdp_config["fsdp_version"]. Keys that a file gives without "fsdp_", "fp8_" or "dynamo_",
  /// and old ones, are here by those names too. Empty: not given.
  ConfigSection fp8_config = {}, deepspeed_config = {}, fsdp_config = {}, parallelism_config = {},
                megatron_lm_config = {}, mpirun_config = {};

  /// Kept for Python's sake; nothing here reads them.
  std::variant<bool, std::string> downcast_bf16 = false;
  std::optional<std::string> tpu_name = {}, tpu_zone = {};
  bool tpu_use_cluster = false, tpu_use_sudo = false;
  std::optional<std::string> command_file = {};
  std::optional<std::vector<std::string>> commands = {}, tpu_vm = {}, tpu_env = {};
  ConfigSection dynamo_config = {};

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

/// Of a YAML file, or of JSON if the name ends in .json. Translates what older versions wrote: `fp16: true`,
/// `dynamo_backend`. Throws ConfigError that lists all problems with file and line: no distributed_type, an unknown key
/// (with the nearest known one), a wrong type, a value that nobody knows; of SageMaker's files, that they are not for
/// this library.
LaunchConfig read_launch_config(const std::string& file);

/// `config` with the values of flags, by the names of keys: {{"num_processes", "4"}, {"fsdp_version", "2"}}.
/// Throws ConfigError with all that is wrong: a name that is no key, a value that does not fit.
LaunchConfig with_flags(LaunchConfig config, const std::map<std::string, std::string>& flags);

/// As Python writes it: all that is not None, keys in alphabetical order. Makes the folder.
/// Throws FileError if the system refuses.
void write_launch_config(const LaunchConfig& config, const std::string& file);

/// The text of such a file: YAML, or JSON.
std::string launch_config_yaml(const LaunchConfig& config);
std::string launch_config_json(const LaunchConfig& config);

/// What cannot be launched by this library (TPU, other vendors' devices, Megatron-LM, fp8 by another package), or by
/// anyone.
std::vector<std::string> problems_of(const LaunchConfig& config);

/// The environment variables by which a launched program learns of the configuration: ACCELERATE_*, FSDP_*,
/// PARALLELISM_CONFIG_*, ... and CUDA_VISIBLE_DEVICES for gpu_ids. Those of a rank's place (RANK, MASTER_ADDR, ...) and
/// OMP_NUM_THREADS are the launcher's. As Accelerate's launcher writes them, but for what it loses:
/// reports/differences.md.
std::map<std::string, std::string> environment_of(const LaunchConfig& config);

/// The same, with whether the configuration gives the value. One that it does not give is a default.
struct LaunchVariable {
  std::string text;
  bool is_given = true;
};
std::map<std::string, LaunchVariable> variables_of(const LaunchConfig& config);

/// The folder of Accelerate's own files: $HF_HOME/accelerate, else $XDG_CACHE_HOME/huggingface/accelerate, else
/// ~/.cache/huggingface/accelerate.
std::string config_folder();
/// default_config.yaml in it, or default_config.json if that is there alone.
std::string default_config_file();

}  // namespace accel
