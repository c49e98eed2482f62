#include "sim/programs/experiments/accelerator_config.hpp"

#include <fmt/format.h>

#include "reference/config/environment.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/experiments/key_rules.hpp"

namespace accel::programs {
namespace {

// Keys that are fields, each of the field's own type and with its default.
class Fields {
 public:
  explicit Fields(YamlReader reader) : reader_(std::move(reader)) {}
  template <typename T>
  Fields& read(const char* key, T& field) {
    if (const auto value = reader_.optional<T>(key)) field = *value;
    return *this;
  }
  template <typename T>
  Fields& read(const char* key, std::optional<T>& field) {
    if (const auto value = reader_.optional<T>(key)) field = value;
    return *this;
  }
  void finish() { reader_.finish_keys(); }

 private:
  YamlReader reader_;
};

GradientAccumulationPlugin read_accumulation(YamlReader reader) {
  GradientAccumulationPlugin plugin;
  plugin.num_steps = reader.required<int>("num_steps", at_least_one, "1 or more");
  Fields(std::move(reader))
      .read("adjust_scheduler", plugin.adjust_scheduler)
      .read("sync_with_dataloader", plugin.sync_with_dataloader)
      .read("sync_each_batch", plugin.sync_each_batch)
      .finish();
  return plugin;
}

void read_ddp(YamlReader reader, DistributedDataParallelKwargs& ddp) {
  auto power_sgd = reader.mapping("comm_state_option");
  Fields(std::move(reader))
      .read("dim", ddp.dim)
      .read("broadcast_buffers", ddp.broadcast_buffers)
      .read("bucket_cap_mb", ddp.bucket_cap_mb)
      .read("find_unused_parameters", ddp.find_unused_parameters)
      .read("check_reduction", ddp.check_reduction)
      .read("gradient_as_bucket_view", ddp.gradient_as_bucket_view)
      .read("static_graph", ddp.static_graph)
      .read("comm_hook", ddp.comm_hook)
      .read("comm_wrapper", ddp.comm_wrapper)
      .finish();
  auto& state = ddp.comm_state_option;
  Fields(std::move(power_sgd))
      .read("matrix_approximation_rank", state.matrix_approximation_rank)
      .read("start_powerSGD_iter", state.start_powerSGD_iter)
      .read("min_compression_rate", state.min_compression_rate)
      .read("use_error_feedback", state.use_error_feedback)
      .read("warm_start", state.warm_start)
      .read("orthogonalization_epsilon", state.orthogonalization_epsilon)
      .read("random_seed", state.random_seed)
      .read("compression_stats_logging_frequency", state.compression_stats_logging_frequency)
      .read("batch_tensors_with_same_shape", state.batch_tensors_with_same_shape)
      .finish();
}

AORecipeKwargs read_float8(YamlReader reader) {
  AORecipeKwargs kwargs;
  auto config = reader.mapping("config");
  if (reader.has("config")) {
    kwargs.config.emplace();
    if (const auto recipe = config.optional<std::string>("recipe_name")) {
      try {
        kwargs.config = Float8LinearConfig::from_recipe_name(*recipe);
      } catch (const ConfigError& error) {
        config.problem("recipe_name", error.what());
      }
    }
    Fields(std::move(config))
        .read("pad_inner_dim", kwargs.config->pad_inner_dim)
        .read("emulate", kwargs.config->emulate)
        .read("enable_fsdp_float8_all_gather", kwargs.config->enable_fsdp_float8_all_gather)
        .read("round_scales_to_power_of_2", kwargs.config->round_scales_to_power_of_2)
        .finish();
  }
  Fields(std::move(reader))
      .read("pad_inner_dim", kwargs.pad_inner_dim)
      .read("enable_fsdp_float8_all_gather", kwargs.enable_fsdp_float8_all_gather)
      .finish();
  return kwargs;
}

// A word sets all dtypes of the version.
std::optional<MixedPrecisionPolicy> read_precision_policy(YamlReader& reader,
                                                          const FullyShardedDataParallelPlugin& plugin) {
  MixedPrecisionPolicy policy;
  if (reader.has_mapping("mixed_precision_policy")) {
    Fields(reader.mapping("mixed_precision_policy"))
        .read("param_dtype", policy.param_dtype)
        .read("reduce_dtype", policy.reduce_dtype)
        .read("buffer_dtype", policy.buffer_dtype)
        .finish();
    return policy;
  }
  const auto is_version_2 = plugin.fsdp_version ? *plugin.fsdp_version == 2 : environment("FSDP_VERSION") == "2";
  policy.param_dtype = policy.reduce_dtype =
      reader.optional<std::string>("mixed_precision_policy", nullptr, "a dtype, or a mapping of dtypes");
  if (!policy.param_dtype) return std::nullopt;
  if (!is_version_2) policy.buffer_dtype = policy.param_dtype;
  return policy;
}

FullyShardedDataParallelPlugin read_fsdp(YamlReader reader) {
  FullyShardedDataParallelPlugin plugin;
  plugin.fsdp_version = reader.optional<int>("fsdp_version");
  plugin.mixed_precision_policy = read_precision_policy(reader, plugin);
  Fields(std::move(reader))
      .read("sharding_strategy", plugin.sharding_strategy)
      .read("reshard_after_forward", plugin.reshard_after_forward)
      .read("backward_prefetch", plugin.backward_prefetch)
      .read("auto_wrap_policy", plugin.auto_wrap_policy)
      .read("transformer_cls_names_to_wrap", plugin.transformer_cls_names_to_wrap)
      .read("min_num_params", plugin.min_num_params)
      .read("wrap_modules", plugin.wrap_modules)
      .read("ignored_modules", plugin.ignored_modules)
      .read("cpu_offload", plugin.cpu_offload)
      .read("state_dict_type", plugin.state_dict_type)
      .read("limit_all_gathers", plugin.limit_all_gathers)
      .read("use_orig_params", plugin.use_orig_params)
      .read("sync_module_states", plugin.sync_module_states)
      .read("forward_prefetch", plugin.forward_prefetch)
      .read("activation_checkpointing", plugin.activation_checkpointing)
      .read("cpu_ram_efficient_loading", plugin.cpu_ram_efficient_loading)
      .finish();
  return plugin;
}

DeepSpeedPlugin read_deepspeed(YamlReader reader) {
  DeepSpeedPlugin plugin;
  Fields(std::move(reader))
      .read("hf_ds_config", plugin.hf_ds_config)
      .read("gradient_accumulation_steps", plugin.gradient_accumulation_steps)
      .read("gradient_clipping", plugin.gradient_clipping)
      .read("zero_stage", plugin.zero_stage)
      .read("offload_optimizer_device", plugin.offload_optimizer_device)
      .read("offload_param_device", plugin.offload_param_device)
      .read("offload_optimizer_nvme_path", plugin.offload_optimizer_nvme_path)
      .read("offload_param_nvme_path", plugin.offload_param_nvme_path)
      .read("zero3_init_flag", plugin.zero3_init_flag)
      .read("zero3_save_16bit_model", plugin.zero3_save_16bit_model)
      .finish();
  return plugin;
}

// What the fields of a struct cannot be together, as the Accelerator's constructor would say.
void note(YamlReader& reader, const char* key, const std::vector<std::string>& problems) {
  for (const auto& problem : problems) reader.problem(key, problem);
}

template <typename Plugin>
void read_plugin(YamlReader& reader, const char* key, Plugin (*read)(YamlReader), const std::string& mixed_precision,
                 std::optional<Plugin>& plugin) {
  auto mapping = reader.mapping(key);
  if (!reader.has(key)) return;
  plugin = read(std::move(mapping));
  std::vector<std::string> problems;
  resolve(*plugin, mixed_precision, problems);
  note(reader, key, problems);
}

void read_plugins(YamlReader& reader, AcceleratorOptions& options) {
  const auto precision = options.mixed_precision.value_or(environment("ACCELERATE_MIXED_PRECISION").value_or("no"));
  read_plugin(reader, "fsdp_plugin", read_fsdp, precision, options.fsdp_plugin);
  read_plugin(reader, "deepspeed_plugin", read_deepspeed, precision, options.deepspeed_plugin);
  note(reader, "fsdp_plugin", problems_of_plugins(options));
}

}  // namespace

void read_accelerator(YamlReader reader, AcceleratorOptions& options) {
  options.mixed_precision =
      reader.optional<std::string>("mixed_precision", is_mixed_precision, "no, fp16, bf16 or fp8");
  options.gradient_accumulation_steps =
      reader.optional<int>("gradient_accumulation_steps", at_least_one, "1 or more").value_or(1);
  auto accumulation = reader.mapping("gradient_accumulation_plugin");
  if (reader.has("gradient_accumulation_plugin"))
    options.gradient_accumulation_plugin = read_accumulation(std::move(accumulation));
  if (reader.has("gradient_accumulation_plugin") && options.gradient_accumulation_steps != 1) {
    reader.problem("gradient_accumulation_steps", "excluded by gradient_accumulation_plugin; give its num_steps");
  }
  options.loss_weighting =
      reader
          .optional<std::string>(
              "loss_weighting", [](const auto& w) { return w == "accelerate" || w == "exact"; }, "accelerate or exact")
          .value_or("accelerate");
  options.split_batches = reader.optional<bool>("split_batches");
  options.step_scheduler_with_optimizer = reader.optional<bool>("step_scheduler_with_optimizer").value_or(true);
  options.device_placement = reader.optional<bool>("device_placement").value_or(true);
  options.debug = reader.optional<bool>("debug");
  if (const auto types = reader.optional<std::vector<std::string>>("rng_types")) options.rng_types = *types;
  Fields(reader.mapping("autocast_kwargs"))
      .read("enabled", options.autocast_kwargs.enabled)
      .read("cache_enabled", options.autocast_kwargs.cache_enabled)
      .finish();
  auto& scaler = options.grad_scaler_kwargs;
  Fields(reader.mapping("grad_scaler_kwargs"))
      .read("init_scale", scaler.init_scale)
      .read("growth_factor", scaler.growth_factor)
      .read("backoff_factor", scaler.backoff_factor)
      .read("growth_interval", scaler.growth_interval)
      .read("enabled", scaler.enabled)
      .finish();
  note(reader, "grad_scaler_kwargs", problems_of(scaler));
  auto float8 = reader.mapping("ao_recipe_kwargs");
  if (reader.has("ao_recipe_kwargs")) {
    options.ao_recipe_kwargs = read_float8(std::move(float8));
    std::vector<std::string> problems;
    resolved(*options.ao_recipe_kwargs, problems);
    note(reader, "ao_recipe_kwargs", problems);
  }
  auto guard = reader.mapping("gradient_guard");
  options.gradient_guard.skip_norm_above = guard.optional<double>(
      "skip_norm_above", [](const double& norm) { return norm > 0; }, "a number above 0");
  Fields(std::move(guard)).read("skip_non_finite", options.gradient_guard.skip_non_finite).finish();
  read_ddp(reader.mapping("ddp_kwargs"), options.ddp_kwargs);
  note(reader, "ddp_kwargs", problems_of(options.ddp_kwargs));
  read_plugins(reader, options);
  reader.finish_keys();
}

void read_dataloader(YamlReader reader, DataLoaderConfiguration& config) {
  config.split_batches = reader.optional<bool>("split_batches").value_or(false);
  config.even_batches = reader.optional<bool>("even_batches").value_or(true);
  config.use_seedable_sampler = reader.optional<bool>("use_seedable_sampler").value_or(false);
  config.data_seed = reader.optional<std::int64_t>("data_seed");
  config.non_blocking = reader.optional<bool>("non_blocking").value_or(false);
  config.dispatch_batches = reader.optional<bool>("dispatch_batches");
  config.use_stateful_dataloader = reader.optional<bool>("use_stateful_dataloader").value_or(false);
  config.order = reader
                     .optional<std::string>(
                         "order", [](const std::string& v) { return v == "accelerate" || v == "elastic"; },
                         "accelerate or elastic")
                     .value_or(config.order);
  reader.finish_keys();
}

}  // namespace accel::programs
