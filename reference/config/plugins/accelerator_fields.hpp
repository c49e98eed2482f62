#pragma once

#include "reference/config/field.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/mesh/axes.hpp"

/// The fields of the Accelerator's options, with their rules. Plugins read fields that the program does not set from
/// the environment; `rule` applies to both. DataLoaderConfiguration and FullyShardedDataParallelPlugin have their lists
/// next to the structs, MegatronLMPlugin in megatron_lm_fields.hpp.
namespace accel {

inline constexpr FieldRule above_one{"a number above 1",
                                     [](double value) { return finite_above_zero(value) && value > 1; }};
inline constexpr const char* kLossWeightings[] = {"accelerate", "exact"};
inline constexpr const char* kCommHooks[] = {"no", "fp16", "bf16", "power_sgd", "batched_power_sgd"};
inline constexpr const char* kCommWrappers[] = {"no", "fp16", "bf16"};
inline constexpr std::initializer_list<const char*> kCpBackends = {"torch"};
inline constexpr std::initializer_list<const char*> kCpCommStrategies = {"allgather", "alltoall"};
inline constexpr std::initializer_list<const char*> kSpBackends = {"deepspeed"};
inline constexpr std::initializer_list<const char*> kSpAttentions = {"sdpa"};

/// The fields that are not structs, with the names used in files.
template <FieldsOf<AcceleratorOptions> Options, typename Visit>
void for_each_field(Options& options, Visit&& visit) {
  visit(Field{.name = "mixed_precision", .rule = {.choices = kMixedPrecisions}}, options.mixed_precision);
  visit(Field{.name = "master_weights"}, options.master_weights);
  visit(Field{.name = "channels_last"}, options.channels_last);
  visit(Field{.name = "gradient_accumulation_steps", .rule = at_least_one}, options.gradient_accumulation_steps);
  visit(Field{.name = "loss_weighting", .rule = {.choices = kLossWeightings}}, options.loss_weighting);
  visit(Field{.name = "split_batches"}, options.split_batches);
  visit(Field{.name = "step_scheduler_with_optimizer"}, options.step_scheduler_with_optimizer);
  visit(Field{.name = "device_placement"}, options.device_placement);
  visit(Field{.name = "debug"}, options.debug);
  visit(Field{.name = "rng_types"}, options.rng_types);
}

template <FieldsOf<GradientAccumulationPlugin> Plugin, typename Visit>
void for_each_field(Plugin& plugin, Visit&& visit) {
  visit(Field{.name = "num_steps", .rule = at_least_one, .is_required = true}, plugin.num_steps);
  visit(Field{.name = "adjust_scheduler"}, plugin.adjust_scheduler);
  visit(Field{.name = "sync_with_dataloader"}, plugin.sync_with_dataloader);
  visit(Field{.name = "sync_each_batch"}, plugin.sync_each_batch);
}

template <FieldsOf<DistributedDataParallelKwargs> Kwargs, typename Visit>
void for_each_field(Kwargs& kwargs, Visit&& visit) {
  visit(Field{.name = "dim"}, kwargs.dim);
  visit(Field{.name = "broadcast_buffers"}, kwargs.broadcast_buffers);
  visit(Field{.name = "find_unused_parameters"}, kwargs.find_unused_parameters);
  visit(Field{.name = "check_reduction"}, kwargs.check_reduction);
  visit(Field{.name = "gradient_as_bucket_view"}, kwargs.gradient_as_bucket_view);
  visit(Field{.name = "static_graph"}, kwargs.static_graph);
  visit(Field{.name = "comm_hook", .rule = {.choices = kCommHooks}}, kwargs.comm_hook);
  visit(Field{.name = "comm_wrapper", .rule = {.choices = kCommWrappers}}, kwargs.comm_wrapper);
  visit(Field{.name = "bucket_cap_mb", .rule = at_least_one}, kwargs.bucket_cap_mb);
}

template <FieldsOf<PowerSGDOptions> Options, typename Visit>
void for_each_field(Options& options, Visit&& visit) {
  visit(Field{.name = "matrix_approximation_rank", .rule = at_least_one}, options.matrix_approximation_rank);
  visit(Field{.name = "start_powerSGD_iter"}, options.start_powerSGD_iter);
  visit(Field{.name = "min_compression_rate", .rule = at_least_zero}, options.min_compression_rate);
  visit(Field{.name = "use_error_feedback"}, options.use_error_feedback);
  visit(Field{.name = "warm_start"}, options.warm_start);
  visit(Field{.name = "orthogonalization_epsilon", .rule = at_least_zero}, options.orthogonalization_epsilon);
  visit(Field{.name = "random_seed",
              .rule = {"0 to 4294967295", [](double seed) { return seed >= 0 && seed <= 0xFFFF'FFFF; }}},
        options.random_seed);
  visit(Field{.name = "compression_stats_logging_frequency"}, options.compression_stats_logging_frequency);
  visit(Field{.name = "batch_tensors_with_same_shape"}, options.batch_tensors_with_same_shape);
}

template <FieldsOf<AutocastKwargs> Kwargs, typename Visit>
void for_each_field(Kwargs& kwargs, Visit&& visit) {
  visit(Field{.name = "enabled"}, kwargs.enabled);
  visit(Field{.name = "cache_enabled"}, kwargs.cache_enabled);
}

template <FieldsOf<GradScalerKwargs> Kwargs, typename Visit>
void for_each_field(Kwargs& kwargs, Visit&& visit) {
  visit(Field{.name = "init_scale", .rule = finite_above_zero}, kwargs.init_scale);
  visit(Field{.name = "growth_factor", .rule = above_one}, kwargs.growth_factor);
  visit(Field{.name = "backoff_factor", .rule = between_zero_and_one}, kwargs.backoff_factor);
  visit(Field{.name = "growth_interval", .rule = at_least_one}, kwargs.growth_interval);
  visit(Field{.name = "enabled"}, kwargs.enabled);
}

template <FieldsOf<BackendsKwargs> Kwargs, typename Visit>
void for_each_field(Kwargs& kwargs, Visit&& visit) {
  visit(Field{.name = "allow_tf32"}, kwargs.allow_tf32);
  visit(Field{.name = "cudnn_benchmark"}, kwargs.cudnn_benchmark);
  visit(Field{.name = "cudnn_deterministic"}, kwargs.cudnn_deterministic);
}

template <FieldsOf<GradientGuard> Guard, typename Visit>
void for_each_field(Guard& guard, Visit&& visit) {
  visit(Field{.name = "skip_norm_above", .rule = above_zero}, guard.skip_norm_above);
  visit(Field{.name = "skip_non_finite"}, guard.skip_non_finite);
}

template <FieldsOf<Float8LinearConfig> Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit(Field{.name = "pad_inner_dim"}, config.pad_inner_dim);
  visit(Field{.name = "emulate"}, config.emulate);
  visit(Field{.name = "enable_fsdp_float8_all_gather"}, config.enable_fsdp_float8_all_gather);
  visit(Field{.name = "round_scales_to_power_of_2"}, config.round_scales_to_power_of_2);
}

template <FieldsOf<AORecipeKwargs> Kwargs, typename Visit>
void for_each_field(Kwargs& kwargs, Visit&& visit) {
  visit(Field{.name = "pad_inner_dim"}, kwargs.pad_inner_dim);
  visit(Field{.name = "enable_fsdp_float8_all_gather"}, kwargs.enable_fsdp_float8_all_gather);
}

template <FieldsOf<MixedPrecisionPolicy> Policy, typename Visit>
void for_each_field(Policy& policy, Visit&& visit) {
  visit(Field{.name = "param_dtype"}, policy.param_dtype);
  visit(Field{.name = "reduce_dtype"}, policy.reduce_dtype);
  visit(Field{.name = "buffer_dtype"}, policy.buffer_dtype);
}

template <FieldsOf<ParallelismConfig> Config, typename Visit>
void for_each_size(Config& config, Visit&& visit) {
  constexpr FieldRule size{"an integer from 1 to 2147483647", at_least_one.accepts};
  for (const auto& axis : mesh_axes())
    visit(Field{.name = axis.size_name, .rule = size, .variable = axis.variable}, config.*axis.size);
}
template <FieldsOf<ParallelismConfig> Config, typename Visit>
void for_each_backend(Config& config, Visit&& visit) {
  visit(Field{.name = "cp_backend", .rule = {.choices = kCpBackends}, .variable = "PARALLELISM_CONFIG_CP_BACKEND"},
        config.cp_backend);
  visit(Field{.name = "sp_backend", .rule = {.choices = kSpBackends}, .variable = "PARALLELISM_CONFIG_SP_BACKEND"},
        config.sp_backend);
}
/// All fields except the handlers, which are structs.
template <FieldsOf<ParallelismConfig> Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  for_each_size(config, visit);
  for_each_backend(config, visit);
}

template <FieldsOf<TorchContextParallelConfig> Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit(Field{.name = "cp_comm_strategy",
              .rule = {.choices = kCpCommStrategies},
              .variable = "PARALLELISM_CONFIG_CP_COMM_STRATEGY"},
        config.cp_comm_strategy);
}

template <FieldsOf<DeepSpeedSequenceParallelConfig> Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit(Field{.name = "sp_seq_length", .rule = at_least_one, .variable = "PARALLELISM_CONFIG_SP_SEQ_LENGTH"},
        config.sp_seq_length);
  visit(Field{.name = "sp_seq_length_is_variable", .variable = "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"},
        config.sp_seq_length_is_variable);
  visit(Field{.name = "sp_attn_implementation",
              .rule = {.choices = kSpAttentions},
              .variable = "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"},
        config.sp_attn_implementation);
}

template <FieldsOf<DeepSpeedPlugin> Plugin, typename Visit>
void for_each_field(Plugin& plugin, Visit&& visit) {
  visit(Field{.name = "hf_ds_config", .variable = "ACCELERATE_DEEPSPEED_CONFIG_FILE"}, plugin.hf_ds_config);
  visit(Field{.name = "gradient_accumulation_steps",
              .rule = {"an integer from 1 to 2147483647 or \"auto\"", at_least_one.accepts},
              .variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
              .deepspeed_key = "gradient_accumulation_steps",
              .fallback = "auto"},
        plugin.gradient_accumulation_steps);
  visit(Field{.name = "gradient_clipping",
              .rule = {"a number of 0 or more, or \"auto\"", finite_at_least_zero.accepts},
              .variable = "ACCELERATE_GRADIENT_CLIPPING",
              .deepspeed_key = "gradient_clipping",
              .fallback = "auto"},
        plugin.gradient_clipping);
  visit(Field{.name = "zero_stage",
              .rule = {"0 to 3", [](double stage) { return stage >= 0 && stage <= 3; }},
              .variable = "ACCELERATE_DEEPSPEED_ZERO_STAGE",
              .deepspeed_key = "zero_optimization.stage",
              .fallback = "2"},
        plugin.zero_stage);
  visit(Field{.name = "offload_optimizer_device",
              .rule = {.choices = kOffloadDevices},
              .variable = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
              .deepspeed_key = "zero_optimization.offload_optimizer.device",
              .fallback = "none"},
        plugin.offload_optimizer_device);
  visit(Field{.name = "offload_optimizer_nvme_path",
              .variable = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
              .deepspeed_key = "zero_optimization.offload_optimizer.nvme_path",
              .fallback = "none"},
        plugin.offload_optimizer_nvme_path);
  visit(Field{.name = "offload_param_device",
              .rule = {.choices = kOffloadDevices},
              .variable = "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
              .deepspeed_key = "zero_optimization.offload_param.device",
              .fallback = "none"},
        plugin.offload_param_device);
  visit(Field{.name = "offload_param_nvme_path",
              .variable = "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
              .deepspeed_key = "zero_optimization.offload_param.nvme_path",
              .fallback = "none"},
        plugin.offload_param_nvme_path);
  visit(Field{.name = "zero3_init_flag", .variable = "ACCELERATE_DEEPSPEED_ZERO3_INIT"}, plugin.zero3_init_flag);
  visit(Field{.name = "zero3_save_16bit_model",
              .variable = "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
              .deepspeed_key = "zero_optimization.stage3_gather_16bit_weights_on_model_save",
              .fallback = "false"},
        plugin.zero3_save_16bit_model);
  visit(Field{.name = "stage3_param_persistence_threshold",
              .rule = at_least_zero,
              .deepspeed_key = "zero_optimization.stage3_param_persistence_threshold"},
        plugin.stage3_param_persistence_threshold);
  visit(Field{.name = "stage3_prefetch_bucket_size",
              .rule = at_least_zero,
              .deepspeed_key = "zero_optimization.stage3_prefetch_bucket_size"},
        plugin.stage3_prefetch_bucket_size);
  visit(Field{.name = "stage3_max_live_parameters",
              .rule = at_least_zero,
              .deepspeed_key = "zero_optimization.stage3_max_live_parameters"},
        plugin.stage3_max_live_parameters);
  visit(Field{.name = "transformer_moe_cls_names", .variable = "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"},
        plugin.transformer_moe_cls_names);
  visit(Field{"wrap_modules"}, plugin.wrap_modules);
}

}  // namespace accel
