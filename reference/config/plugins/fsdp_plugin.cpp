// Source: accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin. Resolves the plugin and the
// environment to ShardingOptions. The two FSDP versions spell the same settings differently; a setting of the
// other version is an error, because Accelerate ignores some of them silently.

#include "reference/config/plugin_reader.hpp"
#include "reference/config/plugins/sharding.hpp"

namespace accel {
namespace {

using Plugin = FullyShardedDataParallelPlugin;

// Accelerate validates reshard_after_forward in version 1 but never uses it. Here it is used if sharding_strategy is
// not set.
std::string strategy_of_version_1(const Plugin& plugin, PluginReader& fields) {
  std::optional<std::string> reshard;
  if (plugin.reshard_after_forward) {
    reshard = fields.optional<std::string>("reshard_after_forward",
                                           FieldRule{.choices = kShardingStrategies, .numbered = true});
  }
  if (plugin.reshard_after_forward && !plugin.sharding_strategy) return reshard.value_or("FULL_SHARD");
  return fields.value<std::string>("sharding_strategy").value_or("FULL_SHARD");
}

// Version 2 has no strategies. Its flag corresponds to the two strategies that differ in when parameters are
// freed.
std::string strategy_of_version_2(const Plugin& plugin, PluginReader& fields) {
  if (plugin.sharding_strategy && !plugin.reshard_after_forward) {
    fields.note(
        "fsdp_plugin: sharding_strategy: '{}' belongs to fsdp_version 1; with version 2 set reshard_after_forward to "
        "true (as FULL_SHARD) or false (as SHARD_GRAD_OP)",
        *plugin.sharding_strategy);
    return "FULL_SHARD";
  }
  const auto reshards = fields.optional<bool>(
      "reshard_after_forward",
      FieldRule{.expected = "true (as FULL_SHARD) or false (as SHARD_GRAD_OP) with fsdp_version 2"});
  return reshards.value_or(true) ? "FULL_SHARD" : "SHARD_GRAD_OP";
}

// Version 2 lacks this field and always prefetches. Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
// _backward_prefetch.
std::optional<Prefetch> prefetch_of(const Plugin& plugin, int version, PluginReader& fields) {
  const auto name = fields.value<std::string>("backward_prefetch");
  if (version == 2 || name == "BACKWARD_PRE") return Prefetch::kBackwardPre;
  if (name == "BACKWARD_POST") return Prefetch::kBackwardPost;
  // Launchers set the variable with a default, so only the program can ask for none.
  return plugin.backward_prefetch ? std::optional(Prefetch::kNone) : std::nullopt;
}

// Accelerate accepts torch.dtype objects, whose text form is "torch.float16", and the short names of
// mixed_precision.
std::optional<FloatType> dtype_of(const char* field, const std::optional<std::string>& given, PluginReader& fields) {
  if (!given) return std::nullopt;
  const auto name = given->starts_with("torch.") ? given->substr(6) : *given;
  if (name == "fp32" || name == "float32") return FloatType::kFloat32;
  if (name == "fp16" || name == "float16") return FloatType::kFloat16;
  if (name == "bf16" || name == "bfloat16") return FloatType::kBFloat16;
  fields.note("fsdp_plugin: mixed_precision_policy: {}: expected fp32, fp16 or bf16, got '{}'", field, *given);
  return std::nullopt;
}

// Source: FullyShardedDataParallelPlugin.set_mixed_precision. Version 2 has no buffer_dtype.
MixedPrecisionPolicy policy_of(const std::string& mixed_precision, int version) {
  const auto dtype = cast_precision(mixed_precision);
  if (dtype != "fp16" && dtype != "bf16") return {};
  return {dtype, dtype, version == 1 ? std::optional(dtype) : std::nullopt};
}

// An explicit policy replaces the one derived from mixed_precision completely; the two are not merged.
void set_dtypes(const Plugin& plugin, int version, const std::string& mixed_precision, PluginReader& fields,
                ShardingOptions& options) {
  const auto policy = plugin.mixed_precision_policy.value_or(policy_of(mixed_precision, version));
  if (version == 2 && policy.buffer_dtype) {
    fields.note(
        "fsdp_plugin: mixed_precision_policy: buffer_dtype: '{}' belongs to fsdp_version 1; version 2 does not cast "
        "buffers; remove it",
        *policy.buffer_dtype);
  }
  options.param_dtype = dtype_of("param_dtype", policy.param_dtype, fields);
  options.reduce_dtype =
      policy.reduce_dtype ? dtype_of("reduce_dtype", policy.reduce_dtype, fields) : options.param_dtype;
  options.buffer_dtype = dtype_of("buffer_dtype", policy.buffer_dtype, fields);
}

// Only the fields of the chosen policy are read, so that a leftover setting of another policy is not an error.
void set_kind(const Plugin& plugin, PluginReader& fields, WrapPolicy& wrap) {
  const auto policy = fields.value<std::string>("auto_wrap_policy");
  if (policy == "TRANSFORMER_BASED_WRAP") {
    wrap.kind = WrapPolicy::Kind::kByClass;
    wrap.classes = plugin.transformer_cls_names_to_wrap;
    if (wrap.classes.empty()) wrap.classes = split_at_commas(fields.text("transformer_cls_names_to_wrap"));
    if (wrap.classes.empty()) {
      fields.note(
          "fsdp_plugin: transformer_cls_names_to_wrap: missing; TRANSFORMER_BASED_WRAP requires class names, set here "
          "or in FSDP_TRANSFORMER_CLS_TO_WRAP");
    }
  } else if (policy == "SIZE_BASED_WRAP") {
    wrap.min_num_params = fields.value<std::int64_t>("min_num_params").value_or(0);
    // With a size of 0 nothing is wrapped, as in Accelerate.
    if (wrap.min_num_params > 0) wrap.kind = WrapPolicy::Kind::kBySize;
  }
}

// wrap_modules is an extension of this library and adds units to any policy; Accelerate has no such field.
WrapPolicy wrap_of(const Plugin& plugin, PluginReader& fields) {
  WrapPolicy wrap;
  set_kind(plugin, fields, wrap);
  wrap.modules = plugin.wrap_modules;
  wrap.ignored = plugin.ignored_modules;
  if (fields.has("ignored_modules") && wrap.ignored.empty()) wrap.ignored = {fields.text("ignored_modules")};
  fields.check_expressions("wrap_modules", wrap.modules);
  fields.check_expressions("ignored_modules", wrap.ignored);
  return wrap;
}

// Source of the defaults: FullyShardedDataParallelPlugin.__post_init__.
std::string state_dict_type_of(int version, PluginReader& fields) {
  const auto type = fields.value<std::string>("state_dict_type");
  if (version == 2 && type == "LOCAL_STATE_DICT") {
    fields.problem("state_dict_type",
                   fmt::format("expected SHARDED_STATE_DICT or FULL_STATE_DICT with fsdp_version 2, got '{}'",
                               fields.text("state_dict_type")));
  }
  return type.value_or(version == 1 ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT");
}

// cpu_ram_efficient_loading loads the weights on rank 0 only, so they must be broadcast. Version 2 has no
// separate flag.
bool syncs_module_states(int version, PluginReader& fields, std::vector<std::string>& warnings) {
  const bool must = fields.value<bool>("cpu_ram_efficient_loading").value_or(false);
  if (version == 2) return must;
  const auto syncs = fields.value<bool>("sync_module_states");
  if (must && syncs == false)
    warnings.emplace_back("sync_module_states: false is ignored, because cpu_ram_efficient_loading requires true");
  return syncs.value_or(false) || must;
}

// The environment variable is ignored in version 2, because launchers set it with a default in either version; for the
// same reason its "false" is not a decision of the program.
std::optional<bool> prefetches_forward(const Plugin& plugin, int version, PluginReader& fields) {
  if (version == 1) {
    const auto prefetches = fields.value<bool>("forward_prefetch");
    return prefetches == true || plugin.forward_prefetch ? prefetches : std::nullopt;
  }
  if (plugin.forward_prefetch)
    fields.note("fsdp_plugin: forward_prefetch: '{}' belongs to fsdp_version 1; remove it with version 2",
                *plugin.forward_prefetch);
  return std::nullopt;
}

// The launcher can set the offload of checkpoints, which has no field in the plugin, so the variable is read
// directly.
bool checkpoints_activations(PluginReader& fields) {
  constexpr const char* kOffload = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD";
  if (const auto offload = environment(kOffload)) fields.give(kOffload, {kOffload, *offload});
  if (fields.optional<bool>(kOffload).value_or(false)) fields.problem(kOffload, "unsupported; unset it");
  return fields.value<bool>("activation_checkpointing").value_or(false);
}

// NO_SHARD is handled by the caller, which returns no sharding options at all.
void set_strategy(const std::string& strategy, ShardingOptions& options) {
  options.reshard_after_forward = strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD";
  options.hybrid = strategy.starts_with("HYBRID_SHARD");
}

// Under NO_SHARD the model is trained by DDP, which lacks these features.
void check_unsharded(const Plugin& plugin, const ShardingOptions& options, PluginReader& fields) {
  const auto check = [&](bool holds, const char* field) {
    if (!holds)
      fields.note("fsdp_plugin: {}: has no effect with NO_SHARD, which uses DDP; remove it, or use SHARD_GRAD_OP",
                  field);
  };
  check(options.offload_parameters == OffloadDevice::kNone, "cpu_offload");
  check(!options.activation_checkpointing, "activation_checkpointing");
  check(!plugin.mixed_precision_policy, "mixed_precision_policy");
}

}  // namespace

// PyTorch's gathers overlap computation on GPUs without these options, since the host runs ahead of the device.
ShardingOptions with_defaults(ShardingOptions options, bool on_device) {
  options.prefetch = options.prefetch.value_or(on_device ? Prefetch::kBackwardPre : Prefetch::kNone);
  options.forward_prefetch = options.forward_prefetch.value_or(on_device);
  return options;
}

// Fields are read even after the first problem, so that all of them are reported.
ResolvedPlugin resolve(const FullyShardedDataParallelPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems) {
  const auto problems_before = problems.size();
  PluginReader fields("fsdp_plugin", plugin, problems);
  const auto version = fields.value<int>("fsdp_version").value_or(1);
  const auto strategy = version == 2 ? strategy_of_version_2(plugin, fields) : strategy_of_version_1(plugin, fields);
  ShardingOptions options;
  set_strategy(strategy, options);
  set_dtypes(plugin, version, mixed_precision, fields, options);
  options.autocasts = version == 1;
  options.prefetch = prefetch_of(plugin, version, fields);
  options.forward_prefetch = prefetches_forward(plugin, version, fields);
  std::vector<std::string> warnings;
  options.sync_module_states = syncs_module_states(version, fields, warnings);
  options.activation_checkpointing = checkpoints_activations(fields);
  options.wrap = wrap_of(plugin, fields);
  options.state_dict_type = state_dict_type_of(version, fields);
  // The optimizer runs on the device of its parameters, so both are offloaded.
  const bool offloads = fields.value<bool>("cpu_offload").value_or(false);
  if (offloads) options.offload_parameters = options.offload_optimizer = OffloadDevice::kCpu;
  if (version == 1) options.aligned = fields.value<bool>("use_orig_params").value_or(false);
  if (!plugin.limit_all_gathers)
    fields.note(
        "fsdp_plugin: limit_all_gathers: false is not supported, because at most one unit is gathered ahead of "
        "its use; remove it");
  if (strategy == "NO_SHARD") check_unsharded(plugin, options, fields);
  if (problems.size() != problems_before || strategy == "NO_SHARD") return {};
  return {.sharding = options, .warnings = std::move(warnings)};
}

}  // namespace accel
