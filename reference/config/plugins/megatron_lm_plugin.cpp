// Source: accelerate/utils/dataclasses.py, MegatronLMPlugin. Accelerate passes the fields to Megatron-LM, which
// replaces model, optimizer and loop. Here they become the mesh, the accumulation steps and the options of the engine.
#include "reference/config/plugins/megatron_lm_plugin.hpp"

#include "reference/config/plugin_reader.hpp"
#include "reference/config/plugins/megatron_lm_fields.hpp"

namespace accel {
namespace {

// A default is given as text, like a value of the environment, and then read by the field's rule.
template <typename T>
void read_field(const Field& field, std::optional<T>& value, PluginReader& fields) {
  const std::string fallback = field.fallback == nullptr ? "" : field.fallback;
  if (!fields.has(field.name) && field.fallback != nullptr)
    fields.give(field.name, {.name = field.name, .text = fallback});
  value = fields.value<T>(field.name);
  if (field.refusal == nullptr || !value || fmt::format("{}", *value) == fallback) return;
  fields.problem(field.name, fmt::format("expected {}, got '{}': {}", fallback.empty() ? "no value" : fallback,
                                         fields.text(field.name), field.refusal));
}

bool is_set(const std::any& value) { return value.has_value(); }
template <typename Container>
bool is_set(const Container& values) {
  return !values.empty();
}
// Fields that are no single value have no variable, and are all refused.
template <typename Values>
void read_field(const Field& field, const Values& values, PluginReader& fields) {
  if (is_set(values)) fields.note("megatron_lm_plugin: {}: expected no value: {}", field.name, field.refusal);
}

// The axes are divided out one after another, so that no product overflows.
std::optional<ParallelismConfig> mesh_of_degrees(const MegatronLMPlugin& plugin, bool shards, int world_size,
                                                 PluginReader& fields) {
  ParallelismConfig mesh{.cp_size = plugin.context_parallel_size.value_or(1),
                         .tp_size = plugin.tp_degree.value_or(1),
                         .ep_size = plugin.expert_model_parallel_size.value_or(1)};
  if (mesh == ParallelismConfig{}) return std::nullopt;
  int data_parallel = world_size;
  for (const int size : {mesh.tp_size, mesh.cp_size, mesh.ep_size}) {
    if (data_parallel % size != 0) {
      fields.note(
          "megatron_lm_plugin: tp_degree {} x context_parallel_size {} x expert_model_parallel_size {} do not divide "
          "{} "
          "ranks; expected a divisor of the number of ranks",
          mesh.tp_size, mesh.cp_size, mesh.ep_size, world_size);
      return std::nullopt;
    }
    data_parallel /= size;
  }
  (shards ? mesh.dp_shard_size : mesh.dp_replicate_size) = data_parallel;
  return mesh;
}

// Megatron's distributed optimizer is ZeRO stage 1: parameters and gradients are complete, and gradients are reduced
// once per step. Its FSDP also shards them. Autocast computes as without sharding, so that neither changes the numbers.
// Source of the smallest unit: stage3_param_persistence_threshold of deepspeed/runtime/zero/config.py.
std::optional<ShardingOptions> sharding_of(const MegatronLMPlugin& plugin, PluginReader& fields) {
  const bool shards_all = plugin.use_custom_fsdp.value_or(false);
  const bool recomputes = plugin.recompute_activations.value_or(false);
  const bool offloads = plugin.optimizer_cpu_offload.value_or(false);
  if (!shards_all && !plugin.use_distributed_optimizer.value_or(false)) {
    const auto require = [&](bool is_set, const char* name) {
      if (is_set) fields.problem(name, "true requires use_distributed_optimizer or use_custom_fsdp");
    };
    require(recomputes, "recompute_activations");
    require(offloads, "optimizer_cpu_offload");
    return std::nullopt;
  }
  ShardingOptions options{.parameters = shards_all, .reshard_after_forward = shards_all, .gradients = shards_all};
  if (offloads) options.offload_optimizer = OffloadDevice::kCpu;
  options.aligned = options.sync_module_states = true;
  options.activation_checkpointing = recomputes;
  if (shards_all || recomputes) options.wrap = {.kind = WrapPolicy::Kind::kElements, .min_num_params = 100'000};
  return options;
}

}  // namespace

// Fields are read even after the first problem, so that all of them are reported.
MegatronLMPlan resolve(const MegatronLMPlugin& plugin, int world_size, std::vector<std::string>& problems) {
  PluginReader fields("megatron_lm_plugin", plugin, problems);
  MegatronLMPlan plan{.plugin = plugin};
  for_each_field(plan.plugin, [&](const Field& field, auto& value) { read_field(field, value, fields); });
  auto& resolved = plan.resolved;
  resolved.sharding = sharding_of(plan.plugin, fields);
  resolved.gradient_accumulation_steps = plan.plugin.num_micro_batches;
  plan.parallelism_config = mesh_of_degrees(plan.plugin, resolved.sharding.has_value(), world_size, fields);
  if (const auto per_token = plan.plugin.calculate_per_token_loss)
    plan.loss_weighting = *per_token ? "exact" : "accelerate";
  // Source: megatron/training/arguments.py, validate_args.
  if (plan.plugin.sequence_parallelism.value_or(false) && plan.plugin.tp_degree.value_or(1) == 1) {
    plan.plugin.sequence_parallelism = false;
    resolved.warnings.emplace_back("megatron_lm_plugin: sequence_parallelism: it is ignored, because tp_degree is 1");
  }
  return plan;
}

}  // namespace accel
