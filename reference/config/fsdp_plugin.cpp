#include <regex>
#include <sstream>

#include "reference/config/plugin_fields.hpp"
#include "reference/config/sharding.hpp"
#include "reference/config/sharding_names.hpp"

namespace accel {
namespace {

using Plugin = FullyShardedDataParallelPlugin;

// Accelerate checks version 1's reshard_after_forward and reads it nowhere; here it counts where sharding_strategy is
// not given.
std::string strategy_of_version_1(const Plugin& plugin, PluginFields& fields) {
  std::optional<std::string> reshard;
  if (plugin.reshard_after_forward) {
    reshard = fields.choice_or_number(
        GivenValue{fields.name_of("reshard_after_forward"), *plugin.reshard_after_forward}, kShardingStrategies);
  }
  if (plugin.reshard_after_forward && !plugin.sharding_strategy) return reshard.value_or("FULL_SHARD");
  return fields
      .choice_or_number(fields.find("sharding_strategy", plugin.sharding_strategy, "FSDP_SHARDING_STRATEGY"),
                        kShardingStrategies)
      .value_or("FULL_SHARD");
}

std::string strategy_of_version_2(const Plugin& plugin, PluginFields& fields) {
  if (plugin.sharding_strategy && !plugin.reshard_after_forward) {
    fields.problem(
        "fsdp_plugin: sharding_strategy: '{}' is of fsdp_version 1; version 2 takes reshard_after_forward: true (as "
        "FULL_SHARD) or false (as SHARD_GRAD_OP)",
        *plugin.sharding_strategy);
    return "FULL_SHARD";
  }
  const auto reshard = fields.find("reshard_after_forward", plugin.reshard_after_forward, "FSDP_RESHARD_AFTER_FORWARD");
  const auto reshards = fields.flag(reshard, "true (as FULL_SHARD) or false (as SHARD_GRAD_OP) with fsdp_version 2");
  return reshards.value_or(true) ? "FULL_SHARD" : "SHARD_GRAD_OP";
}

// Version 2 has no such field, and always prefetches: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
// _backward_prefetch.
Prefetch prefetch_of(const Plugin& plugin, std::int64_t version, PluginFields& fields) {
  const auto given = fields.find("backward_prefetch", plugin.backward_prefetch, "FSDP_BACKWARD_PREFETCH");
  const auto name = fields.choice_or_number(given, kBackwardPrefetches).value_or("NO_PREFETCH");
  if (version == 2 || name == "BACKWARD_PRE") return Prefetch::kBackwardPre;
  return name == "BACKWARD_POST" ? Prefetch::kBackwardPost : Prefetch::kNone;
}

std::optional<FloatType> dtype_of(const char* field, const std::optional<std::string>& given, PluginFields& fields) {
  if (!given) return std::nullopt;
  const auto name = given->starts_with("torch.") ? given->substr(6) : *given;
  if (name == "fp32" || name == "float32") return FloatType::kFloat32;
  if (name == "fp16" || name == "float16") return FloatType::kFloat16;
  if (name == "bf16" || name == "bfloat16") return FloatType::kBFloat16;
  fields.unexpected({fields.name_of("mixed_precision_policy: ") + field, *given}, "fp32, fp16 or bf16");
  return std::nullopt;
}

MixedPrecisionPolicy policy_of(const std::string& mixed_precision, std::int64_t version) {
  const auto dtype = precision_of_casts(mixed_precision);
  if (dtype != "fp16" && dtype != "bf16") return {};
  return {dtype, dtype, version == 1 ? std::optional(dtype) : std::nullopt};
}

void set_dtypes(const Plugin& plugin, std::int64_t version, const std::string& mixed_precision, PluginFields& fields,
                ShardingOptions& options) {
  const auto policy = plugin.mixed_precision_policy.value_or(policy_of(mixed_precision, version));
  if (version == 2 && policy.buffer_dtype) {
    fields.problem(
        "fsdp_plugin: mixed_precision_policy: buffer_dtype: '{}' is of fsdp_version 1; version 2 leaves buffers as "
        "they are",
        *policy.buffer_dtype);
  }
  options.param_dtype = dtype_of("param_dtype", policy.param_dtype, fields);
  options.reduce_dtype =
      policy.reduce_dtype ? dtype_of("reduce_dtype", policy.reduce_dtype, fields) : options.param_dtype;
  options.buffer_dtype = dtype_of("buffer_dtype", policy.buffer_dtype, fields);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const auto first = part.find_first_not_of(' ');
    if (first != std::string::npos) parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return parts;
}

void check_expressions(const char* field, const std::vector<std::string>& expressions, PluginFields& fields) {
  for (const auto& expression : expressions) {
    try {
      std::regex{expression};
    } catch (const std::regex_error& error) {
      fields.problem("fsdp_plugin: {}: expected regular expressions, got '{}': {}", field, expression, error.what());
    }
  }
}

void set_kind(const Plugin& plugin, PluginFields& fields, WrapPolicy& wrap) {
  const auto policy =
      fields.choice(fields.find("auto_wrap_policy", plugin.auto_wrap_policy, "FSDP_AUTO_WRAP_POLICY"), kWrapPolicies);
  if (policy == "TRANSFORMER_BASED_WRAP") {
    wrap.kind = WrapPolicy::Kind::kByClass;
    wrap.classes = plugin.transformer_cls_names_to_wrap;
    if (wrap.classes.empty()) wrap.classes = split(environment("FSDP_TRANSFORMER_CLS_TO_WRAP").value_or(""));
    if (wrap.classes.empty()) {
      fields.problem(
          "fsdp_plugin: transformer_cls_names_to_wrap: missing; TRANSFORMER_BASED_WRAP needs the names of classes, "
          "from here or FSDP_TRANSFORMER_CLS_TO_WRAP");
    }
  } else if (policy == "SIZE_BASED_WRAP") {
    const auto given = fields.find("min_num_params", plugin.min_num_params, "FSDP_MIN_NUM_PARAMS");
    wrap.min_num_params = fields.integer(given, 0, INT64_MAX).value_or(0);
    // A size of 0 wraps nothing, as in Accelerate.
    if (wrap.min_num_params > 0) wrap.kind = WrapPolicy::Kind::kBySize;
  }
}

WrapPolicy wrap_of(const Plugin& plugin, PluginFields& fields) {
  WrapPolicy wrap;
  set_kind(plugin, fields, wrap);
  wrap.modules = plugin.wrap_modules;
  wrap.ignored = plugin.ignored_modules;
  if (const auto ignored = environment("FSDP_IGNORED_MODULES"); ignored && wrap.ignored.empty())
    wrap.ignored = {*ignored};
  check_expressions("wrap_modules", wrap.modules, fields);
  check_expressions("ignored_modules", wrap.ignored, fields);
  return wrap;
}

std::string state_dict_type_of(const Plugin& plugin, std::int64_t version, PluginFields& fields) {
  const auto given = fields.find("state_dict_type", plugin.state_dict_type, "FSDP_STATE_DICT_TYPE");
  const auto type = fields.choice_or_number(given, kStateDictTypes);
  if (version == 2 && type == "LOCAL_STATE_DICT")
    fields.unexpected(*given, "SHARDED_STATE_DICT or FULL_STATE_DICT with fsdp_version 2");
  return type.value_or(version == 1 ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT");
}

bool syncs_module_states(const Plugin& plugin, std::int64_t version, PluginFields& fields) {
  const auto loads_once =
      fields.find("cpu_ram_efficient_loading", plugin.cpu_ram_efficient_loading, "FSDP_CPU_RAM_EFFICIENT_LOADING");
  const bool must = fields.flag(loads_once).value_or(false);
  if (version == 2) return must;
  return fields.flag(fields.find("sync_module_states", plugin.sync_module_states, "FSDP_SYNC_MODULE_STATES"))
             .value_or(false) ||
         must;
}

bool prefetches_forward(const Plugin& plugin, std::int64_t version, PluginFields& fields) {
  if (version == 1)
    return fields.flag(fields.find("forward_prefetch", plugin.forward_prefetch, "FSDP_FORWARD_PREFETCH"))
        .value_or(false);
  if (plugin.forward_prefetch)
    fields.problem("fsdp_plugin: forward_prefetch: '{}' is of fsdp_version 1; leave it out with version 2",
                   *plugin.forward_prefetch);
  return false;
}

bool checkpoints_activations(const Plugin& plugin, PluginFields& fields) {
  if (fields
          .flag(fields.find("activation_checkpointing_offload", std::optional<bool>(),
                            "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"))
          .value_or(false)) {
    fields.problem("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: not built; unset it");
  }
  return fields
      .flag(fields.find("activation_checkpointing", plugin.activation_checkpointing, "FSDP_ACTIVATION_CHECKPOINTING"))
      .value_or(false);
}

void set_strategy(const std::string& strategy, ShardingOptions& options) {
  options.reshard_after_forward = strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD";
  options.hybrid = strategy.starts_with("HYBRID_SHARD");
}

// DDP, which trains under NO_SHARD, has none of these.
void check_unsharded(const Plugin& plugin, const ShardingOptions& options, PluginFields& fields) {
  const auto check = [&](bool holds, const char* field) {
    if (!holds)
      fields.problem(
          "fsdp_plugin: {}: has no meaning under NO_SHARD, which is trained by DDP; leave it out, or take "
          "SHARD_GRAD_OP",
          field);
  };
  check(options.offload_parameters == OffloadDevice::kNone, "cpu_offload");
  check(!options.activation_checkpointing, "activation_checkpointing");
  check(!plugin.mixed_precision_policy, "mixed_precision_policy");
}

}  // namespace

ResolvedPlugin resolve(const FullyShardedDataParallelPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems) {
  const auto problems_before = problems.size();
  PluginFields fields("fsdp_plugin", problems);
  const auto version =
      fields.integer(fields.find("fsdp_version", plugin.fsdp_version, "FSDP_VERSION"), 1, 2).value_or(1);
  const auto strategy = version == 2 ? strategy_of_version_2(plugin, fields) : strategy_of_version_1(plugin, fields);
  ShardingOptions options;
  set_strategy(strategy, options);
  set_dtypes(plugin, version, mixed_precision, fields, options);
  options.autocasts = version == 1;
  options.prefetch = prefetch_of(plugin, version, fields);
  options.forward_prefetch = prefetches_forward(plugin, version, fields);
  options.sync_module_states = syncs_module_states(plugin, version, fields);
  options.activation_checkpointing = checkpoints_activations(plugin, fields);
  options.wrap = wrap_of(plugin, fields);
  options.state_dict_type = state_dict_type_of(plugin, version, fields);
  // The optimizer steps where its parameters are.
  const bool offloads =
      fields.flag(fields.find("cpu_offload", plugin.cpu_offload, "FSDP_OFFLOAD_PARAMS")).value_or(false);
  if (offloads) options.offload_parameters = options.offload_optimizer = OffloadDevice::kCpu;
  if (version == 1)
    options.aligned =
        fields.flag(fields.find("use_orig_params", plugin.use_orig_params, "FSDP_USE_ORIG_PARAMS")).value_or(false);
  if (strategy == "NO_SHARD") check_unsharded(plugin, options, fields);
  if (problems.size() != problems_before || strategy == "NO_SHARD") return {};
  return {.sharding = options};
}

}  // namespace accel
