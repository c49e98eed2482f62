#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/sharding.hpp"
#include "reference/mesh/parallelism_config.hpp"

/// Megatron-LM's parallelism by this library's own layers, groups and engine.
///
///     accel::MegatronLMPlugin plugin{.tp_degree = 2, .num_micro_batches = 4, .use_distributed_optimizer = true};
///     accel::Accelerator accelerator({.megatron_lm_plugin = plugin});  // on 8 ranks: 4 batches, each on 2 ranks
///
/// The program keeps its own model, loop, optimizer and loaders: it builds the model with parallel layers, and calls
/// backward and step. Thread rule: values. Source: accelerate/utils/dataclasses.py, MegatronLMPlugin.
namespace accel {

/// A field without a value defaults to its environment variable, MEGATRON_LM_TP_DEGREE and so on, or to the named
/// default. Every field that is not described below as used accepts its default only: another value is a ConfigError
/// that gives the reason.
struct MegatronLMPlugin {
  std::optional<int> tp_degree = {};  ///< used: tp_size of the mesh; default 1
  std::optional<int> pp_degree = {};  ///< default 1
  /// Used: parameters, gradients and optimizer state are sharded over the data-parallel ranks, and gathered by element
  /// of a Sequential, ModuleList or ModuleDict. Default false.
  std::optional<bool> use_custom_fsdp = {};
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d = {};  ///< default false
  std::optional<bool> no_load_optim = {};                  ///< default false
  std::optional<bool> eod_mask_loss = {};                  ///< default false
  std::optional<bool> no_save_optim = {};                  ///< default false
  std::optional<bool> optimizer_cpu_offload = {};  ///< used: sharded optimizer state is on the host; default false
  std::optional<bool> use_precision_aware_optimizer = {};  ///< default false
  std::optional<int> decoder_last_pipeline_num_layers = {};
  std::optional<std::string> recompute_granularity = {};  ///< default "full"
  std::optional<std::string> recompute_method = {};       ///< default "uniform"
  std::optional<int> recompute_num_layers = {};           ///< default 1
  std::optional<bool> attention_backend = {};             ///< default true
  std::optional<int> expert_model_parallel_size = {};     ///< used: ep_size of the mesh; default 1
  std::optional<int> context_parallel_size = {};          ///< used: cp_size of the mesh; default 1, in Accelerate 2
  std::optional<double> attention_dropout = {};           ///< default 0
  std::optional<double> hidden_dropout = {};              ///< default 0
  std::optional<bool> attention_softmax_in_fp32 = {};     ///< default true
  std::optional<int> expert_tensor_parallel_size = {};    ///< default 1
  /// Used: true sets loss_weighting "exact", false "accelerate". Default: the program's loss_weighting, in Accelerate
  /// true.
  std::optional<bool> calculate_per_token_loss = {};
  std::optional<bool> use_rotary_position_embeddings = {};  ///< default true
  /// Used: gradient_accumulation_steps. Default: the program's.
  std::optional<int> num_micro_batches = {};
  /// Used: an optimizer's `step` first clips its gradients to this norm; 0: it does not. Default 1.
  std::optional<double> gradient_clipping = {};
  /// Used: the program's model reads it from `accelerator.megatron_lm_plugin()`, where it is false if tp_degree is 1.
  /// Default false.
  std::optional<bool> sequence_parallelism = {};
  /// Used: backward recomputes the activations of the elements that use_custom_fsdp describes. Requires it, or
  /// use_distributed_optimizer. Default false.
  std::optional<bool> recompute_activations = {};
  /// Used: the optimizer state is sharded over the data-parallel ranks, as in ZeRO stage 1. Default false.
  std::optional<bool> use_distributed_optimizer = {};
  std::optional<int> pipeline_model_parallel_split_rank = {}, num_layers_per_virtual_pipeline_stage = {};
  std::optional<bool> is_train_batch_min = {};  ///< default true
  std::optional<std::int64_t> train_iters = {}, train_samples = {};
  std::optional<std::string> weight_decay_incr_style = {};  ///< default "constant"
  std::optional<double> start_weight_decay = {}, end_weight_decay = {};
  std::optional<std::string> lr_decay_style = {};  ///< default "linear"
  std::optional<std::int64_t> lr_decay_iters = {}, lr_decay_samples = {}, lr_warmup_iters = {}, lr_warmup_samples = {};
  std::optional<double> lr_warmup_fraction = {};
  std::optional<double> min_lr = {};  ///< default 0
  std::vector<std::int64_t> consumed_samples = {};
  std::any no_wd_decay_cond = {}, scale_lr_cond = {};
  std::optional<double> lr_mult = {};              ///< default 1
  std::optional<bool> megatron_dataset_flag = {};  ///< default false
  std::optional<std::int64_t> seq_length = {}, encoder_seq_length = {}, decoder_seq_length = {};
  std::optional<std::string> tensorboard_dir = {};
  std::optional<bool> set_all_logging_options = {};  ///< default false
  std::optional<std::int64_t> eval_iters = {};       ///< default 100
  std::optional<std::int64_t> eval_interval = {};    ///< default 1000
  std::optional<bool> return_logits = {};            ///< default false
  std::any custom_train_step_class = {}, custom_train_step_kwargs = {}, custom_model_provider_function = {};
  std::any custom_prepare_model_function = {}, custom_megatron_datasets_provider_function = {};
  std::any custom_get_batch_function = {}, custom_loss_function = {};
  std::map<std::string, std::string> other_megatron_args = {};
};

/// What a plugin implies for the other options.
struct MegatronLMPlan {
  MegatronLMPlugin plugin = {};  ///< with the values of the environment and defaults
  /// Sizes of the mesh; nullopt: all ranks are data parallel. The ranks that remain beside tp, cp and ep are dp_shard
  /// if the plugin shards, else dp_replicate.
  std::optional<ParallelismConfig> parallelism_config = {};
  std::optional<std::string> loss_weighting = {};
  ResolvedPlugin resolved = {};
};
/// Resolves the plugin and its environment for `world_size` ranks. Appends to `problems`.
MegatronLMPlan resolve(const MegatronLMPlugin& plugin, int world_size, std::vector<std::string>& problems);

}  // namespace accel
