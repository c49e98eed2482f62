#include "reference/config/launch_keys.hpp"

#include <algorithm>

#include "reference/config/sharding.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using enum KeyKind;
using Key = LaunchKey;
using Config = LaunchConfig;

constexpr std::initializer_list<const char*> kComputeEnvironments = {"LOCAL_MACHINE"};
// Those that this library can do.
constexpr std::initializer_list<const char*> kDistributedTypes = {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"};

constexpr Key kWhatRunsWhere[] = {
    Key("cpu", kFlag, "Ranks on CPUs, over Gloo, as many as --num_processes"),
    Key("multi_gpu", kFlag, "One rank per GPU, over NCCL"),
    Key("sim", kFlag, "Simulated ranks: threads of one process, as many as --num_processes"),
    Key("num_processes", &Config::num_processes, "Ranks on all machines together").defaults_to("one per GPU, or 1"),
    Key("gpu_ids", &Config::gpu_ids, "GPUs of this machine, as in 0,2, or all")
        .in_variable("CUDA_VISIBLE_DEVICES")
        .asked("What GPU(s) (by id) should be used for training on this machine as a comma-separated list?", "all"),
    Key("num_machines", &Config::num_machines, "Machines that take part")
        .defaults_to("1")
        .asked("How many different machines will you use (use more than 1 for multi-node training)?", "1"),
    Key("machine_rank", &Config::machine_rank, "This machine's number, from 0")
        .asked("What is the rank of this machine?", "0"),
    Key("main_process_ip", &Config::main_process_ip, "Address of machine 0")
        .asked("What is the IP address of the machine that will host the main process?"),
    Key("main_process_port", &Config::main_process_port, "Port of machine 0; 0 on one machine: any free one")
        .defaults_to("29500, on one machine another if that is in use")
        .asked("What is the port you will use to communicate with the main process?"),
    Key("same_network", &Config::same_network, "Accepted: machines always meet at machine 0's address")
        .asked("Are all the machines on the same local network? Answer `no` if nodes are on the cloud and/or on "
               "different network hosts",
               "yes"),
    Key("rdzv_backend", &Config::rdzv_backend, "static: machines meet at machine 0's address")
        .asked("What rendezvous backend will you use? ('static', 'c10d', ...)", "static"),
    Key("rdzv_conf", kText,
        "join_timeout, keep_alive_interval (seconds) and keep_alive_max_attempt, as in "
        "join_timeout=60,keep_alive_interval=2"),
    Key("mpirun_hostfile", kText, kMpirunHostfileHelp)};

constexpr Key kWhatRanksAreTold[] = {
    Key("config_file", kText, "File of `accel config`; default: the one in the cache folder, but not with --cpu"),
    Key("mixed_precision", &Config::mixed_precision, "What a forward pass computes in")
        .one_of(kMixedPrecisions)
        .in_variable("ACCELERATE_MIXED_PRECISION", "no")
        .asked("Do you wish to use mixed precision?", "no"),
    Key("gradient_accumulation_steps", kInt, kGradientAccumulationStepsHelp)
        .in_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    Key("num_cpu_threads_per_process", kInt,
        "OMP_NUM_THREADS; default: that variable, else 1, with --cpu an equal part of the cores")
        .in_variable("OMP_NUM_THREADS"),
    Key("enable_cpu_affinity", &Config::enable_cpu_affinity,
        "Each rank runs on CPUs of its own, next to each other in memory")
        .sets("ACCELERATE_CPU_AFFINITY", "1")
        .asked("Would you like to enable numa efficiency?", "no"),
    Key("debug", &Config::debug, "Check shapes over the ranks before collectives")
        .sets("ACCELERATE_DEBUG_MODE", "true")
        .asked("Should distributed operations be checked while running for errors? This can avoid timeout issues but "
               "will be slower.",
               "no"),
    Key("use_fsdp", kFlag, "Shard by FSDP, with the flags --fsdp_*"),
    Key("use_deepspeed", kFlag, "Shard by DeepSpeed's stages, with its flags"),
    Key("use_parallelism_config", kFlag, "A mesh of ranks, with the flags --parallelism_config_*"),
    Key("no_python", kFlag, "Accepted: programs are always executed themselves")};

constexpr Key kWhatBecomesOfThem[] = {
    Key("max_restarts", kInt, "So often all ranks begin anew after a failure; default 0"),
    Key("monitor_interval", kSeconds, "Seconds between two looks at the ranks; default 0.1. An end is noticed at once"),
    Key("log_dir", kText, "Every rank's output into files of this folder, too"),
    Key("tee", kText,
        "Which output goes to the files: 1 standard output, 2 standard error, 3 both; 0:1,1:3 by local rank")
        .short_as('t'),
    Key("role", kText, "What stands in front of a rank's lines in place of `rank`"),
    Key("no_prefix", kFlag, "Nothing in front of a rank's lines"),
    Key("dry_run", kFlag, "Print what would run, and run nothing"),
    Key("quiet", kFlag, "Nothing on standard error but the ranks' own").short_as('q'),
    Key("help", kFlag, "This text").short_as('h')};

constexpr LaunchGroup kGroups[] = {{"What runs where", kWhatRunsWhere},
                                   {"What ranks are told", kWhatRanksAreTold},
                                   {"What becomes of them", kWhatBecomesOfThem}};

// No flags of `accel launch`.
constexpr Key kFileKeys[] = {
    Key("compute_environment", &Config::compute_environment).one_of(kComputeEnvironments),
    Key("distributed_type", &Config::distributed_type,
        "One process, ranks on CPUs or GPUs, or how the model is divided over them")
        .one_of(kDistributedTypes),
    Key("use_cpu", &Config::use_cpu, "On CPUs, whatever GPUs there are")
        .sets("ACCELERATE_USE_CPU", "True", "False")
        .asked("Do you want to run your training on CPU only (even if a GPU is available)?", "no"),
    Key("command_file", &Config::command_file),
    Key("commands", &Config::commands),
    Key("downcast_bf16", &Config::downcast_bf16),
    Key("main_training_function", &Config::main_training_function),
    Key("tpu_env", &Config::tpu_env),
    Key("tpu_name", &Config::tpu_name),
    Key("tpu_use_cluster", &Config::tpu_use_cluster),
    Key("tpu_use_sudo", &Config::tpu_use_sudo),
    Key("tpu_vm", &Config::tpu_vm),
    Key("tpu_zone", &Config::tpu_zone)};

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

const std::map<std::string, FileEntry>& file_entries() {
  static const auto kEntries = collect_file_entries();
  return kEntries;
}

const LaunchKey* find_key(const LaunchSection& section, const std::string& name) {
  const std::string prefix = section.prefix;
  auto wanted = prefix.empty() || name.starts_with(prefix.substr(0, prefix.size() - 1)) ? name : prefix + name;
  for (const auto& [old_name, new_name] : section.old_names) {
    if (wanted == old_name) wanted = new_name;
  }
  return find_in(section.keys, wanted);
}

const LaunchKey* find_launch_flag(const std::string& name) {
  if (const auto* key = find_in_groups(name)) return key;
  for (const auto& section : launch_sections()) {
    if (section.counts_with == nullptr) continue;
    if (const auto* key = find_in(section.keys, name)) return key;
  }
  return nullptr;
}

bool is_switch(const LaunchKey& key) { return key.kind == kFlag && find_in_groups(key.name) == &key; }

}  // namespace accel
