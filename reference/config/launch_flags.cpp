#include "reference/config/launch_config.hpp"
#include "reference/config/launch_fields.hpp"
#include "reference/config/launch_keys.hpp"

namespace accel {
namespace {

// Where a text is one of some: those that this library can do.
std::vector<std::string> choices_of(const std::string& name) {
  if (name == "compute_environment") return {"LOCAL_MACHINE"};
  if (name == "distributed_type") return {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"};
  if (name == "mixed_precision") return {"no", "fp16", "bf16"};
  return {};
}

std::string help_of(const std::string& name) {
  static const std::map<std::string, std::string> kHelp = {
      {"debug", "Check shapes over the ranks before collectives"},
      {"distributed_type", "One process, ranks on CPUs or GPUs, or how the model is divided over them"},
      {"enable_cpu_affinity", "Each rank runs on CPUs of its own, next to each other in memory"},
      {"gpu_ids", "GPUs of this machine, as in 0,2, or all"},
      {"machine_rank", "This machine's number, from 0"},
      {"main_process_ip", "Address of machine 0"},
      {"main_process_port", "Port of machine 0; 0 on one machine: any free one"},
      {"mixed_precision", "What a forward pass computes in"},
      {"num_machines", "Machines that take part"},
      {"num_processes", "Ranks on all machines together"},
      {"rdzv_backend", "static: machines meet at machine 0's address"},
      {"same_network", "Accepted: machines always meet at machine 0's address"},
      {"use_cpu", "On CPUs, whatever GPUs there are"}};
  const auto found = kHelp.find(name);
  return found == kHelp.end() ? "" : found->second;
}

}  // namespace

std::vector<LaunchFlag> launch_flags() {
  std::vector<LaunchFlag> flags;
  LaunchConfig config;
  for_each_field(config, [&](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, ConfigSection>) {
      for (const auto& key : section_table(name).keys)
        flags.push_back({key.name, name, expected_of(key), {key.choices.begin(), key.choices.end()}, key.help});
    } else if constexpr (!std::is_same_v<Field, std::optional<std::vector<std::string>>>) {
      const bool is_flag = std::is_same_v<Field, bool>,
                 is_number = std::is_same_v<Field, int> || std::is_same_v<Field, std::optional<int>>;
      flags.push_back({name, "",
                       is_flag     ? "true or false"
                       : is_number ? "an integer"
                                   : "a text",
                       choices_of(name), help_of(name)});
    }
  });
  return flags;
}

}  // namespace accel
