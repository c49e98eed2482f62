// The table of launch settings. A row yields a flag, a key of the file, a question and a variable, so they cannot drift
// apart. Help texts are ours; questions are copied from Accelerate word for word, because people have scripts that
// answer them. Source: accelerate/commands/launch.py; accelerate/commands/config/cluster.py.
#include "reference/config/launch/launch_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/environment.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using enum KeyKind;
using Key = LaunchKey;
using Config = LaunchConfig;

constexpr std::initializer_list<const char*> kComputeEnvironments = {"LOCAL_MACHINE"};
// The types that this library supports. Accelerate has others for devices that LibTorch lacks.
constexpr std::initializer_list<const char*> kDistributedTypes = {"NO",   "MULTI_CPU", "MULTI_GPU",
                                                                  "FSDP", "DEEPSPEED", "MEGATRON_LM"};

// Simulated ranks run once, in one process; mpirun places ranks and writes their output.
constexpr std::initializer_list<const char*> kSim = {"sim"}, kSimOrMpirun = {"sim", "mpirun_hostfile"};

constexpr Key kPlacementKeys[] = {
    Key("cpu", kFlag, "Run ranks on CPUs over Gloo, --num_processes of them"),
    Key("multi_gpu", kFlag, "Run one rank per GPU over NCCL"),
    Key("sim", kFlag, "Simulate --num_processes ranks as threads of one process"),
    Key("num_processes", &Config::num_processes, "Total number of ranks on all machines")
        .defaults_to("one per GPU, or 1"),
    Key("gpu_ids", &Config::gpu_ids, "GPUs to use on this machine, as in 0,2, or all")
        .in_variable("CUDA_VISIBLE_DEVICES")
        .asked("What GPU(s) (by id) should be used for training on this machine as a comma-separated list?", "all"),
    Key("num_machines", &Config::num_machines, "Number of machines")
        .defaults_to("1")
        .asked("How many different machines will you use (use more than 1 for multi-node training)?", "1"),
    Key("machine_rank", &Config::machine_rank, "Rank of this machine, from 0")
        .asked("What is the rank of this machine?", "0"),
    Key("main_process_ip", &Config::main_process_ip, "Address of machine 0")
        .asked("What is the IP address of the machine that will host the main process?"),
    Key("main_process_port", &Config::main_process_port, "Port of machine 0; on a single machine 0 selects a free one")
        .defaults_to("29500, or on a single machine another one if that is in use")
        .asked("What is the port you will use to communicate with the main process?"),
    Key("same_network", &Config::same_network, "Accepted for compatibility; machines always rendezvous at machine 0")
        .asked("Are all the machines on the same local network? Answer `no` if nodes are on the cloud and/or on "
               "different network hosts",
               "yes"),
    Key("rdzv_backend", &Config::rdzv_backend,
        "Only static is supported: machines rendezvous at the address of machine 0")
        .asked("What rendezvous backend will you use? ('static', 'c10d', ...)", "static"),
    Key("rdzv_conf", kText,
        "Rendezvous settings join_timeout and keep_alive_interval (seconds) and keep_alive_max_attempt, as in "
        "join_timeout=60,keep_alive_interval=2")
        .not_with(kSimOrMpirun),
    Key("mpirun_hostfile", kText, kMpirunHostfileHelp)};

constexpr Key kRankSettingKeys[] = {
    Key("config_file", kText,
        "File written by `accel config`; default: the one in the cache folder, which --cpu ignores"),
    Key("mixed_precision", &Config::mixed_precision, "Precision of forward passes")
        .one_of(kMixedPrecisions)
        .in_variable("ACCELERATE_MIXED_PRECISION", "no")
        .asked("Do you wish to use mixed precision?", "no"),
    Key("gradient_accumulation_steps", kInt, kGradientAccumulationStepsHelp)
        .in_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    Key("num_cpu_threads_per_process", kInt,
        "OMP_NUM_THREADS of each rank; default: that variable, else 1, or with --cpu an equal share of the cores")
        .in_variable("OMP_NUM_THREADS"),
    Key("enable_cpu_affinity", &Config::enable_cpu_affinity,
        "Pin each rank to its own CPUs, close to each other in memory (NUMA)")
        .sets("ACCELERATE_CPU_AFFINITY", "1")
        .not_with(kSim)
        .asked("Would you like to enable numa efficiency?", "no"),
    Key("debug", &Config::debug, "Compare shapes across ranks before collectives")
        .sets("ACCELERATE_DEBUG_MODE", "true")
        .asked("Should distributed operations be checked while running for errors? This can avoid timeout issues but "
               "will be slower.",
               "no"),
    Key("use_fsdp", kFlag, "Shard the model with FSDP, configured by --fsdp_* flags"),
    Key("use_deepspeed", kFlag, "Shard the model with DeepSpeed's ZeRO stages, configured by the flags below"),
    Key("use_megatron_lm", kFlag, "Divide the model as Megatron-LM does, configured by --megatron_lm_* flags"),
    Key("use_parallelism_config", kFlag, "Arrange ranks in a mesh, configured by --parallelism_config_* flags"),
    Key("no_python", kFlag, "Accepted for compatibility; PROGRAM is always executed directly")};

constexpr const char* kOnHang[] = {"warn", "stop"};

constexpr Key kOutputKeys[] = {
    Key("max_restarts", kInt, "Number of times to restart all ranks after a failure; default 0").not_with(kSim),
    Key("monitor_interval", kSeconds,
        "Seconds between checks of the ranks; default 0.1. The end of a rank is noticed at once"),
    Key("hang_seconds", kSeconds,
        "Seconds after which ranks that wait for one that may only be slow are reported; default 60, then twice as "
        "long "
        "and so on")
        .in_variable("ACCEL_HANG_SECONDS")
        .not_with(kSim),
    Key("on_hang", kText, "What such a report does: print a warning, which is the default, or stop the job")
        .one_of(kOnHang)
        .in_variable("ACCEL_ON_HANG")
        .not_with(kSim),
    Key("diagnosis", kText, "Write how the job ended to this file, as JSON").not_with(kSimOrMpirun),
    Key("timeline", kText,
        "Write a timeline of the ranks' calls to this file, for Perfetto; Chrome's JSON if it ends in .json")
        .not_with(kSimOrMpirun),
    Key("log_dir", kText, "Also write the output of each rank to files in this folder").not_with(kSimOrMpirun),
    Key("tee", kText,
        "Output to write to the files: 1 standard output, 2 standard error, 3 both; per local rank as in 0:1,1:3")
        .short_as('t')
        .not_with(kSimOrMpirun),
    Key("role", kText, "Prefix of each line of a rank's output; default `rank`").not_with(kSimOrMpirun),
    Key("no_prefix", kFlag, "Print the ranks' lines without a prefix"),
    Key("dry_run", kFlag, "Print the commands without running them"),
    Key("quiet", kFlag, "Print no messages of the launcher on standard error").short_as('q'),
    Key("help", kFlag, "Print this help").short_as('h')};

constexpr LaunchGroup kGroups[] = {{"Ranks and machines", kPlacementKeys},
                                   {"Settings of ranks", kRankSettingKeys},
                                   {"Output and failures", kOutputKeys}};

constexpr const char* kTpuReason = "it is for TPUs, and LibTorch has no TPU backend";

// Keys of the file that are not flags of `accel launch`.
constexpr Key kFileKeys[] = {
    Key("compute_environment", &Config::compute_environment).one_of(kComputeEnvironments),
    Key("distributed_type", &Config::distributed_type,
        "NO for one process, MULTI_CPU or MULTI_GPU for replicas, FSDP or DEEPSPEED for a sharded model, MEGATRON_LM "
        "for a divided one")
        .one_of(kDistributedTypes),
    Key("use_cpu", &Config::use_cpu, "Use CPUs even if there are GPUs")
        .sets("ACCELERATE_USE_CPU", "True", "False")
        .asked("Do you want to run your training on CPU only (even if a GPU is available)?", "no"),
    Key("command_file", &Config::command_file).unused(kTpuReason),
    Key("commands", &Config::commands).unused(kTpuReason),
    Key("downcast_bf16", &Config::downcast_bf16).unused(kTpuReason),
    Key("main_training_function", &Config::main_training_function).unused(kTpuReason),
    Key("tpu_env", &Config::tpu_env).unused(kTpuReason),
    Key("tpu_name", &Config::tpu_name).unused(kTpuReason),
    Key("tpu_use_cluster", &Config::tpu_use_cluster).unused(kTpuReason),
    Key("tpu_use_sudo", &Config::tpu_use_sudo).unused(kTpuReason),
    Key("tpu_vm", &Config::tpu_vm).unused(kTpuReason),
    Key("tpu_zone", &Config::tpu_zone).unused(kTpuReason)};

const LaunchKey* find_in(std::span<const LaunchKey> keys, const std::string& name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const LaunchKey& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

const LaunchKey* find_in_groups(const std::string& name) {
  for (const auto& group : kGroups) {
    if (const auto* key = find_in(group.keys, name)) return key;
  }
  return nullptr;
}

// A std::map sorts by name, which is the order in which Accelerate writes its files.
std::map<std::string, FileEntry> collect_file_entries() {
  std::map<std::string, FileEntry> entries;
  const auto add_keys = [&](std::span<const LaunchKey> keys) {
    for (const auto& key : keys) {
      if (!std::holds_alternative<std::monostate>(key.field)) entries[key.name] = {key.field, &key, nullptr};
    }
  };
  for (const auto& group : kGroups) add_keys(group.keys);
  add_keys(kFileKeys);
  for (const auto& section : launch_sections()) entries[section.name] = {section.field, nullptr, &section};
  return entries;
}

}  // namespace

std::span<const LaunchGroup> launch_groups() { return kGroups; }

const LaunchSection& launch_section(const std::string& name) {
  const auto entry = file_entries().find(name);
  ensure(entry != file_entries().end() && entry->second.section != nullptr, "no section {}", name);
  return *entry->second.section;
}

std::vector<std::string> unused_variables() {
  std::vector<std::string> described;
  const auto look_at = [&](const LaunchSection& section, const LaunchKey& key, const std::string& variable) {
    const auto* reason = unused_reason(section, key);
    const auto value = environment(variable);
    if (reason == nullptr || !value || value->empty() || is_harmless(key, *value, /*allows_fallback=*/true)) return;
    described.push_back(fmt::format("{}: has no effect: {}", variable, reason));
  };
  for (const auto& section : launch_sections()) {
    for (const auto& key : section.keys) {
      if (key.variable != nullptr && key.kind != kFlags) look_at(section, key, key.variable);
    }
  }
  return described;
}

const std::map<std::string, FileEntry>& file_entries() {
  static const auto kEntries = collect_file_entries();
  return kEntries;
}

// Keys may leave out the prefix of their section, and names of older Accelerate versions map to the current ones.
const LaunchKey* find_key(const LaunchSection& section, const std::string& name) {
  const std::string prefix = section.prefix;
  auto wanted = prefix.empty() || name.starts_with(prefix.substr(0, prefix.size() - 1)) ? name : prefix + name;
  for (const auto& [old_name, new_name] : section.old_names) {
    if (wanted == old_name) wanted = new_name;
  }
  return find_in(section.keys, wanted);
}

// Groups come first: a name that is both a general flag and a key of a section means the general one.
const LaunchKey* find_launch_flag(const std::string& name) {
  if (const auto* key = find_in_groups(name)) return key;
  for (const auto& section : launch_sections()) {
    if (section.required_flag == nullptr) continue;
    if (const auto* key = find_in(section.keys, name)) return key;
  }
  return nullptr;
}

bool is_switch(const LaunchKey& key) { return key.kind == kFlag && find_in_groups(key.name) == &key; }

}  // namespace accel
