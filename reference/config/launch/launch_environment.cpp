// The environment of launched programs. Source: accelerate/utils/launch.py, prepare_multi_gpu_env,
// prepare_deepspeed_cmd_env and their callees. Defaults are included because Accelerate's launcher sets them too;
// a program must see the same variables from both launchers.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_config.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

using Variables = std::map<std::string, LaunchVariable>;

// --- keys outside of sections ----------------------------------------------------------------------------------------

// Text of a member for its variable; nullopt if the member sets none.
struct FieldText {
  const LaunchConfig& config;
  const LaunchKey& key;

  std::optional<std::string> operator()(bool LaunchConfig::*member) const {
    return config.*member && key.true_text != nullptr ? std::optional<std::string>(key.true_text) : std::nullopt;
  }
  std::optional<std::string> operator()(int LaunchConfig::*member) const { return fmt::format("{}", config.*member); }
  std::optional<std::string> operator()(std::string LaunchConfig::*member) const { return config.*member; }
  template <typename T>
  std::optional<std::string> operator()(std::optional<T> LaunchConfig::*member) const {
    return config.*member ? std::optional(fmt::format("{}", *(config.*member))) : std::nullopt;
  }
  // Lists and sections have no variable.
  std::optional<std::string> operator()(std::optional<std::vector<std::string>> LaunchConfig::*) const {
    return std::nullopt;
  }
  template <typename Other>
  std::optional<std::string> operator()(Other) const {
    return std::nullopt;
  }
};

// A variable with a default is set even if the file does not mention the key, with is_given = false. The launcher
// uses that to let variables of the caller's environment win over defaults, but not over values of the file.
void add_fields(const LaunchConfig& config, Variables& variables) {
  for (const auto& [name, entry] : file_entries()) {
    if (entry.key == nullptr || entry.key->variable == nullptr) continue;
    const auto text = std::visit(FieldText{config, *entry.key}, entry.field);
    if (text)
      variables[entry.key->variable] = {*text};
    else if (entry.key->fallback != nullptr)
      variables[entry.key->variable] = {entry.key->fallback, /*is_given=*/false};
  }
  // "all" is not a list of devices. Without the variable, all devices are visible.
  if (config.gpu_ids == "all") variables.erase("CUDA_VISIBLE_DEVICES");
}

// --- keys of sections ------------------------------------------------------------------------------------------------

// Formats a value as Accelerate does. Depending on the section, flags are written as "True" or as "true".
std::string variable_text(const LaunchSection& section, const LaunchKey& key, const ConfigValue& value) {
  const auto text = python_text(value);
  const bool is_flag = std::holds_alternative<bool>(value);
  if (is_flag && !section.python_flags) return lower_case(text);
  return key.name == std::string("dynamo_backend") ? upper_case(text) : text;
}

// fp8_override_linear_precision sets one variable per product of a Linear layer.
void add_override(const LaunchKey& key, const ConfigSection& values, Variables& variables) {
  const auto given = values.find(key.name);
  const auto flags =
      given == values.end() ? std::array<bool, 3>{} : three_flags(given->second).value_or(std::array<bool, 3>{});
  constexpr std::array kProducts = {"FPROP", "DGRAD", "WGRAD"};
  for (std::size_t index = 0; index < flags.size(); ++index)
    variables[std::string(key.variable) + kProducts.at(index)] = {python_text(bool(flags.at(index)))};
}

// Order of precedence: the value in the file, then Accelerate's default, otherwise the variable stays unset.
void add_section(const char* name, const LaunchConfig& config, Variables& variables) {
  const auto& section = launch_section(name);
  const auto& values = config.*section.field;
  for (const auto& key : section.keys) {
    if (key.variable == nullptr) continue;
    const auto given = values.find(key.name);
    if (key.kind == KeyKind::kFlags)
      add_override(key, values, variables);
    else if (given != values.end())
      variables[key.variable] = {variable_text(section, key, given->second)};
    else if (key.fallback != nullptr)
      variables[key.variable] = {key.fallback, /*is_given=*/false};
  }
}

// The value was checked when the file was read, so stoll cannot throw.
std::int64_t integer_in(const ConfigSection& section, const char* key, std::int64_t fallback) {
  const auto found = section.find(key);
  return found == section.end() ? fallback : std::stoll(python_text(found->second));
}

// For version 1, `accelerate config` asks for the strategy and stores it as reshard_after_forward, which version 1
// never reads: programs get FULL_SHARD regardless of the answer. Here they get the chosen strategy.
void add_fsdp(const LaunchConfig& config, Variables& variables) {
  const auto& fsdp = config.fsdp_config;
  variables["ACCELERATE_USE_FSDP"] = {"true"};
  add_section("fsdp_config", config, variables);
  auto& reshard = variables["FSDP_RESHARD_AFTER_FORWARD"];
  auto& strategy = variables["FSDP_SHARDING_STRATEGY"];
  const bool is_strategy = std::find(kShardingStrategies.begin(), kShardingStrategies.end(),
                                     upper_case(reshard.text)) != kShardingStrategies.end();
  if (is_strategy && integer_in(fsdp, "fsdp_version", 1) == 1 && !fsdp.contains("fsdp_sharding_strategy"))
    strategy.text = upper_case(reshard.text);
  strategy.is_given = strategy.is_given || reshard.is_given;
  reshard.text = lower_case(reshard.text);
}

// ACCELERATE_CONFIG_DS_FIELDS lists the keys of the file, so that the program can detect a conflict with a
// DeepSpeed file (check_launcher_fields in deepspeed_plugin.cpp).
void add_deepspeed(const LaunchConfig& config, Variables& variables) {
  variables["ACCELERATE_USE_DEEPSPEED"] = {"true"};
  add_section("deepspeed_config", config, variables);
  std::string fields;
  for (const auto& [key, value] : config.deepspeed_config) fields += (fields.empty() ? "" : ",") + key;
  if (config.mixed_precision) fields += (fields.empty() ? "" : ",") + std::string("mixed_precision");
  variables["ACCELERATE_CONFIG_DS_FIELDS"] = {fields};
}

void add_parallelism(const LaunchConfig& config, Variables& variables) {
  const auto& parallelism = config.parallelism_config;
  if (parallelism.empty()) return;
  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = {"true"};
  add_section("parallelism_config", config, variables);
  // Accelerate sets these defaults only if the axis is used.
  const auto add_default = [&](const char* name, const char* text) {
    variables.emplace(name, LaunchVariable{text, /*is_given=*/false});
  };
  if (integer_in(parallelism, "parallelism_config_cp_size", 1) > 1)
    add_default("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather");
  if (integer_in(parallelism, "parallelism_config_sp_size", 1) > 1) {
    add_default("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "True");
    add_default("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "sdpa");
  }
}

}  // namespace

// Sections that do not apply to the distributed type are ignored, as in Accelerate: files keep them when a user
// switches the type.
std::map<std::string, LaunchVariable> variables_of(const LaunchConfig& config) {
  Variables variables;
  add_fields(config, variables);
  add_section("dynamo_config", config, variables);
  if (config.mixed_precision == "fp8") add_section("fp8_config", config, variables);
  if (config.distributed_type == "FSDP") add_fsdp(config, variables);
  if (config.distributed_type == "DEEPSPEED") add_deepspeed(config, variables);
  if (config.distributed_type == "MEGATRON_LM") {
    variables["ACCELERATE_USE_MEGATRON_LM"] = {"true"};
    add_section("megatron_lm_config", config, variables);
  }
  add_parallelism(config, variables);
  return variables;
}

std::map<std::string, std::string> environment_of(const LaunchConfig& config) {
  std::map<std::string, std::string> environment;
  for (const auto& [name, variable] : variables_of(config)) environment[name] = variable.text;
  return environment;
}

}  // namespace accel
