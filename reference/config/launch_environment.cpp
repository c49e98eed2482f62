#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/config/environment.hpp"
#include "reference/config/launch_config.hpp"
#include "reference/config/launch_keys.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

using Variables = std::map<std::string, std::string>;

// Flags as Accelerate writes them: Python's words, or those in small letters.
std::string variable_text(const SectionKeys& table, const SectionKey& key, const ConfigValue& value) {
  const auto text = python_text(value);
  const bool is_flag = std::holds_alternative<bool>(value);
  if (is_flag && !table.python_flags) return lower_case(text);
  return key.name == std::string("dynamo_backend") ? upper_case(text) : text;
}

void add_override(const SectionKey& key, const ConfigSection& section, Variables& variables) {
  const auto given = section.find(key.name);
  const auto flags =
      given == section.end() ? std::array<bool, 3>{} : three_flags(given->second).value_or(std::array<bool, 3>{});
  constexpr std::array kProducts = {"FPROP", "DGRAD", "WGRAD"};
  for (std::size_t index = 0; index < flags.size(); ++index)
    variables[std::string(key.variable) + kProducts.at(index)] = python_text(bool(flags.at(index)));
}

void add_section(const char* name, const ConfigSection& section, Variables& variables) {
  const auto& table = section_table(name);
  for (const auto& key : table.keys) {
    if (key.variable == nullptr) continue;
    const auto given = section.find(key.name);
    if (key.kind == KeyKind::kFlags)
      add_override(key, section, variables);
    else if (given != section.end())
      variables[key.variable] = variable_text(table, key, given->second);
    else if (key.fallback != nullptr)
      variables[key.variable] = key.fallback;
  }
}

std::int64_t integer_in(const ConfigSection& section, const char* key, std::int64_t fallback) {
  const auto found = section.find(key);
  return found == section.end() ? fallback : std::stoll(python_text(found->second));
}

// In version 1 `accelerate config` asks for the strategy and writes it as reshard_after_forward, which nothing reads
// there: programs get FULL_SHARD whatever was chosen. Here it is what was chosen.
void add_fsdp(const ConfigSection& fsdp, Variables& variables) {
  variables["ACCELERATE_USE_FSDP"] = "true";
  add_section("fsdp_config", fsdp, variables);
  auto& reshard = variables["FSDP_RESHARD_AFTER_FORWARD"];
  const bool is_strategy = std::find(kShardingStrategies.begin(), kShardingStrategies.end(), upper_case(reshard)) !=
                           kShardingStrategies.end();
  if (is_strategy && integer_in(fsdp, "fsdp_version", 1) == 1 && !fsdp.contains("fsdp_sharding_strategy"))
    variables["FSDP_SHARDING_STRATEGY"] = upper_case(reshard);
  reshard = lower_case(reshard);
}

void add_deepspeed(const LaunchConfig& config, Variables& variables) {
  variables["ACCELERATE_USE_DEEPSPEED"] = "true";
  add_section("deepspeed_config", config.deepspeed_config, variables);
  std::string fields;
  for (const auto& [key, value] : config.deepspeed_config) fields += (fields.empty() ? "" : ",") + key;
  if (config.mixed_precision) fields += (fields.empty() ? "" : ",") + std::string("mixed_precision");
  variables["ACCELERATE_CONFIG_DS_FIELDS"] = fields;
}

void add_parallelism(const ConfigSection& parallelism, Variables& variables) {
  if (parallelism.empty()) return;
  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  add_section("parallelism_config", parallelism, variables);
  if (integer_in(parallelism, "parallelism_config_cp_size", 1) > 1)
    variables.emplace("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather");
  if (integer_in(parallelism, "parallelism_config_sp_size", 1) > 1) {
    variables.emplace("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "True");
    variables.emplace("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "sdpa");
  }
}

}  // namespace

std::map<std::string, std::string> environment_of(const LaunchConfig& config) {
  Variables variables{{"ACCELERATE_MIXED_PRECISION", config.mixed_precision.value_or("no")},
                      {"ACCELERATE_USE_CPU", python_text(config.use_cpu)}};
  if (config.debug) variables["ACCELERATE_DEBUG_MODE"] = "true";
  if (config.enable_cpu_affinity) variables["ACCELERATE_CPU_AFFINITY"] = "1";
  if (config.gpu_ids && *config.gpu_ids != "all") variables["CUDA_VISIBLE_DEVICES"] = *config.gpu_ids;
  add_section("dynamo_config", config.dynamo_config, variables);
  if (config.mixed_precision == "fp8") add_section("fp8_config", config.fp8_config, variables);
  if (config.distributed_type == "FSDP") add_fsdp(config.fsdp_config, variables);
  if (config.distributed_type == "DEEPSPEED") add_deepspeed(config, variables);
  if (config.distributed_type == "MEGATRON_LM") {
    variables["ACCELERATE_USE_MEGATRON_LM"] = "true";
    add_section("megatron_lm_config", config.megatron_lm_config, variables);
  }
  add_parallelism(config.parallelism_config, variables);
  return variables;
}

}  // namespace accel
