#pragma once

#include <initializer_list>

#include "reference/config/field.hpp"
#include "reference/config/megatron_lm_plugin.hpp"

/// The fields of MegatronLMPlugin. A field is used, or has a `refusal`: resolve accepts only its fallback then.
namespace accel {

inline constexpr std::initializer_list<const char*> kRecomputeGranularities = {"full", "selective"};
inline constexpr std::initializer_list<const char*> kRecomputeMethods = {"uniform", "block"};
inline constexpr std::initializer_list<const char*> kDecayStyles = {"constant", "linear", "cosine"};

// Reasons of refusals.
inline constexpr const char* kPipelineReason = "pipeline parallelism is unsupported";
inline constexpr const char* kModelReason = "the program's own model determines it; set it there";
inline constexpr const char* kLossReason = "the program computes the loss; mask it there";
inline constexpr const char* kLoopReason = "the program's own loop determines it";
inline constexpr const char* kLoadersReason = "the program's own loaders determine it; prepare them";
inline constexpr const char* kResumeReason = "load_state and skip_first_batches restore the place in the data";
inline constexpr const char* kScheduleReason = "prepare a schedule, such as that of get_scheduler, instead";
inline constexpr const char* kParameterGroupsReason = "set it in the optimizer's parameter groups instead";
inline constexpr const char* kLoadReason =
    "load_state loads the optimizer; load weights alone by load_checkpoint_in_model";
inline constexpr const char* kSaveReason = "save_state saves the optimizer; save weights alone by save_model";
inline constexpr const char* kOptimizerReason = "the optimizer's class and its device determine how it steps";
inline constexpr const char* kUnitsReason = "complete units are recomputed, one at a time";
inline constexpr const char* kExpertsReason = "experts are divided by expert_model_parallel_size only";
inline constexpr const char* kTrackingReason = "set log_with and project_config, and call init_trackers, instead";
inline constexpr const char* kPythonReason =
    "it replaces a part of Megatron-LM's own loop; write it in the program instead";

/// The sizes of the mesh and what the plugin implies for training.
template <FieldsOf<MegatronLMPlugin> Plugin, typename Visit>
void for_each_used_field(Plugin& plugin, Visit&& visit) {
  const auto used = [&](const char* name, const char* variable, const char* fallback, FieldRule rule, auto& value) {
    visit(Field{.name = name, .rule = rule, .variable = variable, .fallback = fallback}, value);
  };
  used("tp_degree", "MEGATRON_LM_TP_DEGREE", "1", at_least_one, plugin.tp_degree);
  used("context_parallel_size", "MEGATRON_LM_CONTEXT_PARALLEL_SIZE", "1", at_least_one, plugin.context_parallel_size);
  used("expert_model_parallel_size", "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE", "1", at_least_one,
       plugin.expert_model_parallel_size);
  used("num_micro_batches", "MEGATRON_LM_NUM_MICRO_BATCHES", nullptr, at_least_one, plugin.num_micro_batches);
  used("gradient_clipping", "MEGATRON_LM_GRADIENT_CLIPPING", "1", finite_at_least_zero, plugin.gradient_clipping);
  used("sequence_parallelism", "MEGATRON_LM_SEQUENCE_PARALLELISM", "false", {}, plugin.sequence_parallelism);
  used("use_distributed_optimizer", "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "false", {},
       plugin.use_distributed_optimizer);
  used("use_custom_fsdp", "MEGATRON_LM_USE_CUSTOM_FSDP", "false", {}, plugin.use_custom_fsdp);
  used("optimizer_cpu_offload", "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", "false", {}, plugin.optimizer_cpu_offload);
  used("recompute_activations", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "false", {}, plugin.recompute_activations);
  used("calculate_per_token_loss", "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", nullptr, {},
       plugin.calculate_per_token_loss);
}

/// The fields that accept nothing but their fallback.
template <FieldsOf<MegatronLMPlugin> Plugin, typename Visit>
void for_each_refused_field(Plugin& plugin, Visit&& visit) {
  const auto refused = [&](const char* name, const char* variable, const char* fallback, const char* reason,
                           auto& value, std::initializer_list<const char*> choices = {}) {
    visit(
        Field{
            .name = name, .rule = {.choices = choices}, .variable = variable, .fallback = fallback, .refusal = reason},
        value);
  };
  refused("pp_degree", "MEGATRON_LM_PP_DEGREE", "1", kPipelineReason, plugin.pp_degree);
  refused("decoder_last_pipeline_num_layers", "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS", nullptr, kPipelineReason,
          plugin.decoder_last_pipeline_num_layers);
  refused("pipeline_model_parallel_split_rank", nullptr, nullptr, kPipelineReason,
          plugin.pipeline_model_parallel_split_rank);
  refused("num_layers_per_virtual_pipeline_stage", nullptr, nullptr, kPipelineReason,
          plugin.num_layers_per_virtual_pipeline_stage);
  refused("expert_tensor_parallel_size", "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE", "1", kExpertsReason,
          plugin.expert_tensor_parallel_size);
  refused("overlap_cpu_optimizer_d2h_h2d", "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", "false", kOptimizerReason,
          plugin.overlap_cpu_optimizer_d2h_h2d);
  refused("use_precision_aware_optimizer", "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", "false", kOptimizerReason,
          plugin.use_precision_aware_optimizer);
  refused("no_load_optim", "MEGATRON_LM_NO_LOAD_OPTIM", "false", kLoadReason, plugin.no_load_optim);
  refused("no_save_optim", "MEGATRON_LM_NO_SAVE_OPTIM", "false", kSaveReason, plugin.no_save_optim);
  refused("recompute_granularity", "MEGATRON_LM_RECOMPUTE_GRANULARITY", "full", kUnitsReason,
          plugin.recompute_granularity, kRecomputeGranularities);
  refused("recompute_method", "MEGATRON_LM_RECOMPUTE_METHOD", "uniform", kUnitsReason, plugin.recompute_method,
          kRecomputeMethods);
  refused("recompute_num_layers", "MEGATRON_LM_RECOMPUTE_NUM_LAYERS", "1", kUnitsReason, plugin.recompute_num_layers);
  refused("attention_backend", "MEGATRON_LM_ATTENTION_BACKEND", "true", kModelReason, plugin.attention_backend);
  refused("attention_dropout", "MEGATRON_LM_ATTENTION_DROPOUT", "0", kModelReason, plugin.attention_dropout);
  refused("hidden_dropout", "MEGATRON_LM_HIDDEN_DROPOUT", "0", kModelReason, plugin.hidden_dropout);
  refused("attention_softmax_in_fp32", "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32", "true", kModelReason,
          plugin.attention_softmax_in_fp32);
  refused("use_rotary_position_embeddings", "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS", "true", kModelReason,
          plugin.use_rotary_position_embeddings);
  refused("eod_mask_loss", "MEGATRON_LM_EOD_MASK_LOSS", "false", kLossReason, plugin.eod_mask_loss);
  refused("return_logits", nullptr, "false", kModelReason, plugin.return_logits);
  refused("seq_length", nullptr, nullptr, kModelReason, plugin.seq_length);
  refused("encoder_seq_length", nullptr, nullptr, kModelReason, plugin.encoder_seq_length);
  refused("decoder_seq_length", nullptr, nullptr, kModelReason, plugin.decoder_seq_length);
  refused("is_train_batch_min", nullptr, "true", kLoadersReason, plugin.is_train_batch_min);
  refused("megatron_dataset_flag", nullptr, "false", kLoadersReason, plugin.megatron_dataset_flag);
  refused("consumed_samples", nullptr, nullptr, kResumeReason, plugin.consumed_samples);
  refused("train_iters", nullptr, nullptr, kLoopReason, plugin.train_iters);
  refused("train_samples", nullptr, nullptr, kLoopReason, plugin.train_samples);
  refused("eval_iters", nullptr, "100", kLoopReason, plugin.eval_iters);
  refused("eval_interval", nullptr, "1000", kLoopReason, plugin.eval_interval);
  refused("weight_decay_incr_style", nullptr, "constant", kParameterGroupsReason, plugin.weight_decay_incr_style,
          kDecayStyles);
  refused("start_weight_decay", nullptr, nullptr, kParameterGroupsReason, plugin.start_weight_decay);
  refused("end_weight_decay", nullptr, nullptr, kParameterGroupsReason, plugin.end_weight_decay);
  refused("no_wd_decay_cond", nullptr, nullptr, kParameterGroupsReason, plugin.no_wd_decay_cond);
  refused("scale_lr_cond", nullptr, nullptr, kParameterGroupsReason, plugin.scale_lr_cond);
  refused("lr_mult", nullptr, "1", kParameterGroupsReason, plugin.lr_mult);
  refused("lr_decay_style", nullptr, "linear", kScheduleReason, plugin.lr_decay_style, kDecayStyles);
  refused("lr_decay_iters", nullptr, nullptr, kScheduleReason, plugin.lr_decay_iters);
  refused("lr_decay_samples", nullptr, nullptr, kScheduleReason, plugin.lr_decay_samples);
  refused("lr_warmup_iters", nullptr, nullptr, kScheduleReason, plugin.lr_warmup_iters);
  refused("lr_warmup_samples", nullptr, nullptr, kScheduleReason, plugin.lr_warmup_samples);
  refused("lr_warmup_fraction", nullptr, nullptr, kScheduleReason, plugin.lr_warmup_fraction);
  refused("min_lr", nullptr, "0", kScheduleReason, plugin.min_lr);
  refused("tensorboard_dir", nullptr, nullptr, kTrackingReason, plugin.tensorboard_dir);
  refused("set_all_logging_options", nullptr, "false", kTrackingReason, plugin.set_all_logging_options);
  refused("custom_train_step_class", nullptr, nullptr, kPythonReason, plugin.custom_train_step_class);
  refused("custom_train_step_kwargs", nullptr, nullptr, kPythonReason, plugin.custom_train_step_kwargs);
  refused("custom_model_provider_function", nullptr, nullptr, kPythonReason, plugin.custom_model_provider_function);
  refused("custom_prepare_model_function", nullptr, nullptr, kPythonReason, plugin.custom_prepare_model_function);
  refused("custom_megatron_datasets_provider_function", nullptr, nullptr, kPythonReason,
          plugin.custom_megatron_datasets_provider_function);
  refused("custom_get_batch_function", nullptr, nullptr, kPythonReason, plugin.custom_get_batch_function);
  refused("custom_loss_function", nullptr, nullptr, kPythonReason, plugin.custom_loss_function);
  refused("other_megatron_args", nullptr, nullptr, kPythonReason, plugin.other_megatron_args);
}

template <FieldsOf<MegatronLMPlugin> Plugin, typename Visit>
void for_each_field(Plugin& plugin, Visit&& visit) {
  for_each_used_field(plugin, visit);
  for_each_refused_field(plugin, visit);
}

}  // namespace accel
