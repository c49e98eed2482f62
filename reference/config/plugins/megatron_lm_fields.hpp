#pragma once

#include <any>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "reference/config/field.hpp"
#include "reference/config/plugins/megatron_lm_plugin.hpp"

/// The fields of MegatronLMPlugin, in one table. A field is used, or has a `refusal`: resolve accepts only its fallback
/// then.
namespace accel {
namespace megatron_lm {

using Plugin = MegatronLMPlugin;
using Member =
    std::variant<std::optional<bool> Plugin::*, std::optional<int> Plugin::*, std::optional<std::int64_t> Plugin::*,
                 std::optional<double> Plugin::*, std::optional<std::string> Plugin::*,
                 std::vector<std::int64_t> Plugin::*, std::any Plugin::*, std::map<std::string, std::string> Plugin::*>;

struct Row {
  const char* name;
  Member member;
  const char* refusal;
  const char* fallback = nullptr;
  const char* variable = nullptr;
  FieldRule rule = {};
};

inline constexpr std::initializer_list<const char*> kRecomputeGranularities = {"full", "selective"};
inline constexpr std::initializer_list<const char*> kRecomputeMethods = {"uniform", "block"};
inline constexpr std::initializer_list<const char*> kDecayStyles = {"constant", "linear", "cosine"};

// Reasons of refusals.
inline constexpr const char* kUsed = nullptr;
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

/// In the order in which problems are reported.
inline constexpr Row kRows[] = {
    {"tp_degree", &Plugin::tp_degree, kUsed, "1", "MEGATRON_LM_TP_DEGREE", at_least_one},
    {"context_parallel_size", &Plugin::context_parallel_size, kUsed, "1", "MEGATRON_LM_CONTEXT_PARALLEL_SIZE",
     at_least_one},
    {"expert_model_parallel_size", &Plugin::expert_model_parallel_size, kUsed, "1",
     "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE", at_least_one},
    {"num_micro_batches", &Plugin::num_micro_batches, kUsed, nullptr, "MEGATRON_LM_NUM_MICRO_BATCHES", at_least_one},
    {"gradient_clipping", &Plugin::gradient_clipping, kUsed, "1", "MEGATRON_LM_GRADIENT_CLIPPING",
     finite_at_least_zero},
    {"sequence_parallelism", &Plugin::sequence_parallelism, kUsed, "false", "MEGATRON_LM_SEQUENCE_PARALLELISM"},
    {"use_distributed_optimizer", &Plugin::use_distributed_optimizer, kUsed, "false",
     "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"},
    {"use_custom_fsdp", &Plugin::use_custom_fsdp, kUsed, "false", "MEGATRON_LM_USE_CUSTOM_FSDP"},
    {"optimizer_cpu_offload", &Plugin::optimizer_cpu_offload, kUsed, "false", "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD"},
    {"recompute_activations", &Plugin::recompute_activations, kUsed, "false", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS"},
    {"calculate_per_token_loss", &Plugin::calculate_per_token_loss, kUsed, nullptr,
     "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"},
    {"pp_degree", &Plugin::pp_degree, kPipelineReason, "1", "MEGATRON_LM_PP_DEGREE"},
    {"decoder_last_pipeline_num_layers", &Plugin::decoder_last_pipeline_num_layers, kPipelineReason, nullptr,
     "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS"},
    {"pipeline_model_parallel_split_rank", &Plugin::pipeline_model_parallel_split_rank, kPipelineReason},
    {"num_layers_per_virtual_pipeline_stage", &Plugin::num_layers_per_virtual_pipeline_stage, kPipelineReason},
    {"expert_tensor_parallel_size", &Plugin::expert_tensor_parallel_size, kExpertsReason, "1",
     "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE"},
    {"overlap_cpu_optimizer_d2h_h2d", &Plugin::overlap_cpu_optimizer_d2h_h2d, kOptimizerReason, "false",
     "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D"},
    {"use_precision_aware_optimizer", &Plugin::use_precision_aware_optimizer, kOptimizerReason, "false",
     "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER"},
    {"no_load_optim", &Plugin::no_load_optim, kLoadReason, "false", "MEGATRON_LM_NO_LOAD_OPTIM"},
    {"no_save_optim", &Plugin::no_save_optim, kSaveReason, "false", "MEGATRON_LM_NO_SAVE_OPTIM"},
    {"recompute_granularity",
     &Plugin::recompute_granularity,
     kUnitsReason,
     "full",
     "MEGATRON_LM_RECOMPUTE_GRANULARITY",
     {.choices = kRecomputeGranularities}},
    {"recompute_method",
     &Plugin::recompute_method,
     kUnitsReason,
     "uniform",
     "MEGATRON_LM_RECOMPUTE_METHOD",
     {.choices = kRecomputeMethods}},
    {"recompute_num_layers", &Plugin::recompute_num_layers, kUnitsReason, "1", "MEGATRON_LM_RECOMPUTE_NUM_LAYERS"},
    {"attention_backend", &Plugin::attention_backend, kModelReason, "true", "MEGATRON_LM_ATTENTION_BACKEND"},
    {"attention_dropout", &Plugin::attention_dropout, kModelReason, "0", "MEGATRON_LM_ATTENTION_DROPOUT"},
    {"hidden_dropout", &Plugin::hidden_dropout, kModelReason, "0", "MEGATRON_LM_HIDDEN_DROPOUT"},
    {"attention_softmax_in_fp32", &Plugin::attention_softmax_in_fp32, kModelReason, "true",
     "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32"},
    {"use_rotary_position_embeddings", &Plugin::use_rotary_position_embeddings, kModelReason, "true",
     "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS"},
    {"eod_mask_loss", &Plugin::eod_mask_loss, kLossReason, "false", "MEGATRON_LM_EOD_MASK_LOSS"},
    {"return_logits", &Plugin::return_logits, kModelReason, "false"},
    {"seq_length", &Plugin::seq_length, kModelReason},
    {"encoder_seq_length", &Plugin::encoder_seq_length, kModelReason},
    {"decoder_seq_length", &Plugin::decoder_seq_length, kModelReason},
    {"is_train_batch_min", &Plugin::is_train_batch_min, kLoadersReason, "true"},
    {"megatron_dataset_flag", &Plugin::megatron_dataset_flag, kLoadersReason, "false"},
    {"consumed_samples", &Plugin::consumed_samples, kResumeReason},
    {"train_iters", &Plugin::train_iters, kLoopReason},
    {"train_samples", &Plugin::train_samples, kLoopReason},
    {"eval_iters", &Plugin::eval_iters, kLoopReason, "100"},
    {"eval_interval", &Plugin::eval_interval, kLoopReason, "1000"},
    {"weight_decay_incr_style",
     &Plugin::weight_decay_incr_style,
     kParameterGroupsReason,
     "constant",
     nullptr,
     {.choices = kDecayStyles}},
    {"start_weight_decay", &Plugin::start_weight_decay, kParameterGroupsReason},
    {"end_weight_decay", &Plugin::end_weight_decay, kParameterGroupsReason},
    {"no_wd_decay_cond", &Plugin::no_wd_decay_cond, kParameterGroupsReason},
    {"scale_lr_cond", &Plugin::scale_lr_cond, kParameterGroupsReason},
    {"lr_mult", &Plugin::lr_mult, kParameterGroupsReason, "1"},
    {"lr_decay_style", &Plugin::lr_decay_style, kScheduleReason, "linear", nullptr, {.choices = kDecayStyles}},
    {"lr_decay_iters", &Plugin::lr_decay_iters, kScheduleReason},
    {"lr_decay_samples", &Plugin::lr_decay_samples, kScheduleReason},
    {"lr_warmup_iters", &Plugin::lr_warmup_iters, kScheduleReason},
    {"lr_warmup_samples", &Plugin::lr_warmup_samples, kScheduleReason},
    {"lr_warmup_fraction", &Plugin::lr_warmup_fraction, kScheduleReason},
    {"min_lr", &Plugin::min_lr, kScheduleReason, "0"},
    {"tensorboard_dir", &Plugin::tensorboard_dir, kTrackingReason},
    {"set_all_logging_options", &Plugin::set_all_logging_options, kTrackingReason, "false"},
    {"custom_train_step_class", &Plugin::custom_train_step_class, kPythonReason},
    {"custom_train_step_kwargs", &Plugin::custom_train_step_kwargs, kPythonReason},
    {"custom_model_provider_function", &Plugin::custom_model_provider_function, kPythonReason},
    {"custom_prepare_model_function", &Plugin::custom_prepare_model_function, kPythonReason},
    {"custom_megatron_datasets_provider_function", &Plugin::custom_megatron_datasets_provider_function, kPythonReason},
    {"custom_get_batch_function", &Plugin::custom_get_batch_function, kPythonReason},
    {"custom_loss_function", &Plugin::custom_loss_function, kPythonReason},
    {"other_megatron_args", &Plugin::other_megatron_args, kPythonReason}};

}  // namespace megatron_lm

template <FieldsOf<MegatronLMPlugin> Plugin, typename Visit>
void for_each_field(Plugin& plugin, Visit&& visit) {
  for (const auto& [name, member, refusal, fallback, variable, rule] : megatron_lm::kRows) {
    const Field field{.name = name, .rule = rule, .variable = variable, .fallback = fallback, .refusal = refusal};
    std::visit([&](auto at) { visit(field, plugin.*at); }, member);
  }
}

}  // namespace accel
