// The sections of the configuration file and their keys. Variables and defaults are those of
// accelerate/utils/launch.py; keys without a help text have no effect here and are kept so that files survive a round
// trip through `accel config`.
#include <algorithm>

#include "reference/config/launch_keys.hpp"
#include "reference/config/sharding.hpp"

namespace accel {
namespace {

using enum KeyKind;
using Key = LaunchKey;
using Names = std::initializer_list<const char*>;

constexpr Names kFsdpVersions = {"1", "2"};

// Both versions share these rows. A help text names the version if only one of them uses the key.
constexpr Key kFsdpKeys[] = {
    Key("fsdp_version", kInteger, "Version whose names the other keys have")
        .one_of(kFsdpVersions)
        .in_variable("FSDP_VERSION", "1")
        .asked("What should be your FSDP version?", "2"),
    Key("fsdp_sharding_strategy", kChoice, "Version 1: what is sharded, and when it is freed")
        .one_of(kShardingStrategies)
        .in_variable("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
        .asked("What should be your sharding strategy?", "FULL_SHARD"),
    Key("fsdp_reshard_after_forward", kFlagOrText,
        "Version 2: free parameters between forward and backward; true or false")
        .in_variable("FSDP_RESHARD_AFTER_FORWARD", "true")
        .asked("Do you want to enable resharding after forward?", "yes"),
    Key("fsdp_offload_params", kFlag, "Keep parameters, gradients and optimizer state in host memory")
        .in_variable("FSDP_OFFLOAD_PARAMS", "false")
        .asked("Do you want to offload parameters and gradients to CPU?", "no"),
    Key("fsdp_min_num_params", kInteger, "For SIZE_BASED_WRAP: minimum number of parameters of a unit")
        .in_variable("FSDP_MIN_NUM_PARAMS", "100000000")
        .asked("What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
               "100000000"),
    Key("fsdp_auto_wrap_policy", kChoice, "Which modules become units that are gathered separately")
        .one_of(kWrapPolicies)
        .in_variable("FSDP_AUTO_WRAP_POLICY")
        .asked("What should be your auto wrap policy?", "TRANSFORMER_BASED_WRAP"),
    Key("fsdp_transformer_layer_cls_to_wrap", kText, "For TRANSFORMER_BASED_WRAP: module classes, such as Block,Head")
        .in_variable("FSDP_TRANSFORMER_CLS_TO_WRAP")
        .asked("Specify the comma-separated list of layer class names (case-sensitive) to wrap, e.g. `Block` or "
               "`Encoder,Decoder`"),
    Key("fsdp_backward_prefetch", kChoice, "Version 1: when to gather the parameters of the next unit in backward")
        .one_of(kBackwardPrefetches)
        .in_variable("FSDP_BACKWARD_PREFETCH")
        .asked("What should be your FSDP's backward prefetch policy?", "BACKWARD_PRE"),
    Key("fsdp_state_dict_type", kChoice, "Format of the model in checkpoints")
        .one_of(kStateDictTypes)
        .in_variable("FSDP_STATE_DICT_TYPE")
        .asked("What should be your FSDP's state dict type?"),
    Key("fsdp_forward_prefetch", kFlag, "Version 1: gather the next unit in advance in forward")
        .in_variable("FSDP_FORWARD_PREFETCH", "false")
        .asked("Do you want to enable FSDP's forward prefetch policy?", "no"),
    Key("fsdp_use_orig_params", kFlag, "Version 1: layout of parameters in shards")
        .in_variable("FSDP_USE_ORIG_PARAMS", "true")
        .asked("Do you want to enable FSDP's `use_orig_params` feature?", "yes"),
    Key("fsdp_cpu_ram_efficient_loading", kFlag, "Load weights on rank 0 only and broadcast them")
        .in_variable("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
        .asked("Do you want to enable CPU RAM efficient model loading?", "yes"),
    Key("fsdp_sync_module_states", kFlag, "Version 1: broadcast the parameters of rank 0 in prepare")
        .in_variable("FSDP_SYNC_MODULE_STATES", "true")
        .asked("Do you want each individually wrapped FSDP unit to broadcast module parameters from rank 0 at the "
               "start?",
               "yes"),
    Key("fsdp_activation_checkpointing", kFlag, "Recompute activations in the backward pass")
        .in_variable("FSDP_ACTIVATION_CHECKPOINTING", "false")
        .asked("Do you want to enable FSDP activation checkpointing?", "no"),
    Key("fsdp_activation_checkpointing_offload", kFlag).in_variable("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    Key("fsdp_ignored_modules", kText, "Modules that are not sharded: a regular expression of names")
        .in_variable("FSDP_IGNORED_MODULES")};
constexpr std::pair<const char*, const char*> kOldFsdpNames[] = {
    {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"}};

constexpr Names kZeroStages = {"0", "1", "2", "3"};
constexpr Names kMultinodeLaunchers = {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"};

// No defaults: the variables of absent keys stay unset, and the fallbacks of DeepSpeedPlugin's fields apply.
constexpr Key kDeepSpeedKeys[] = {
    Key("deepspeed_config_file", kText, "A DeepSpeed JSON file, which replaces the keys below")
        .in_variable("ACCELERATE_DEEPSPEED_CONFIG_FILE")
        .asked("Please enter the path to the json DeepSpeed config file"),
    Key("zero_stage", kInteger, "What is sharded: nothing, optimizer state, also gradients, also parameters")
        .one_of(kZeroStages)
        .in_variable("ACCELERATE_DEEPSPEED_ZERO_STAGE")
        .asked("What should be your DeepSpeed's ZeRO optimization stage?", "2"),
    Key("gradient_accumulation_steps", kNumberOrAuto, kGradientAccumulationStepsHelp)
        .in_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
        .asked("How many gradient accumulation steps you're passing in your script?", "1"),
    Key("gradient_clipping", kNumberOrAuto, "Maximum norm of gradients")
        .in_variable("ACCELERATE_GRADIENT_CLIPPING")
        .asked("What is the gradient clipping value?", "1.0"),
    Key("offload_optimizer_device", kChoice, "Where to store the optimizer state, from stage 2 on")
        .one_of(kOffloadDevices)
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE")
        .asked("Where to offload optimizer states?", "none"),
    Key("offload_param_device", kChoice, "Where to store parameters, in stage 3")
        .one_of(kOffloadDevices)
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE")
        .asked("Where to offload parameters?", "none"),
    Key("offload_optimizer_nvme_path", kText, "Folder for offload_optimizer_device: nvme")
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH")
        .asked("Nvme Path to offload optimizer states?", "/nvme"),
    Key("offload_param_nvme_path", kText, "Folder for offload_param_device: nvme")
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH")
        .asked("Nvme Path to offload parameters?", "/nvme"),
    Key("zero3_init_flag", kFlag, "Accepted without effect").in_variable("ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    Key("zero3_save_16bit_model", kFlag, "Stage 3: save the complete weights in 16 bits")
        .in_variable("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL")
        .asked("Do you want to save 16-bit model weights when using ZeRO Stage-3?", "no"),
    Key("deepspeed_moe_layer_cls_names", kText).in_variable("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
    Key("deepspeed_hostfile", kText),
    Key("deepspeed_exclusion_filter", kText),
    Key("deepspeed_inclusion_filter", kText),
    Key("deepspeed_multinode_launcher", kChoice).one_of(kMultinodeLaunchers)};

constexpr Names kContextParallelBackends = {"torch"};
constexpr Names kContextParallelStrategies = {"allgather", "alltoall"};
constexpr Names kSequenceParallelBackends = {"deepspeed"};

// These keys have no questions: they are set in files and by flags.
constexpr Key kParallelismKeys[] = {
    Key("parallelism_config_dp_replicate_size", kInteger, "Number of replicas of the sharded model")
        .in_variable("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"),
    Key("parallelism_config_dp_shard_size", kInteger, "Number of ranks over which a replica is sharded")
        .in_variable("PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"),
    Key("parallelism_config_tp_size", kInteger, "Number of ranks that share a batch by tensor parallelism")
        .in_variable("PARALLELISM_CONFIG_TP_SIZE", "1"),
    Key("parallelism_config_cp_size", kInteger, "Number of ranks that share a batch by context parallelism")
        .in_variable("PARALLELISM_CONFIG_CP_SIZE", "1"),
    Key("parallelism_config_cp_backend", kChoice)
        .one_of(kContextParallelBackends)
        .in_variable("PARALLELISM_CONFIG_CP_BACKEND", "torch"),
    Key("parallelism_config_cp_comm_strategy", kChoice)
        .one_of(kContextParallelStrategies)
        .in_variable("PARALLELISM_CONFIG_CP_COMM_STRATEGY"),
    Key("parallelism_config_sp_size", kInteger, "Number of ranks that share a batch by sequence parallelism")
        .in_variable("PARALLELISM_CONFIG_SP_SIZE", "1"),
    Key("parallelism_config_sp_backend", kChoice)
        .one_of(kSequenceParallelBackends)
        .in_variable("PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"),
    Key("parallelism_config_sp_seq_length", kText).in_variable("PARALLELISM_CONFIG_SP_SEQ_LENGTH"),
    Key("parallelism_config_sp_seq_length_is_variable", kFlag)
        .in_variable("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"),
    Key("parallelism_config_sp_attn_implementation", kText).in_variable("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION")};

constexpr Names kFp8Backends = {"AO", "TE", "MSAMP"};
constexpr Names kFp8Formats = {"HYBRID", "E4M3", "E5M2"};
constexpr Names kFp8AmaxAlgorithms = {"max", "most_recent"};
constexpr Names kFp8OptimizationLevels = {"O1", "O2"};

// Most rows configure Transformer Engine or MS-AMP, which are unavailable here. They are kept so that files and
// variables equal those of Accelerate.
constexpr Key kFp8Keys[] = {
    Key("fp8_backend", kChoice, "For mixed_precision fp8: implementation; only AO, the built-in one, is supported")
        .one_of(kFp8Backends)
        .in_variable("ACCELERATE_FP8_BACKEND"),
    Key("fp8_use_autocast_during_eval", kFlag).in_variable("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False"),
    Key("fp8_margin", kInteger).in_variable("ACCELERATE_FP8_MARGIN", "0"),
    Key("fp8_interval", kInteger).in_variable("ACCELERATE_FP8_INTERVAL", "1"),
    Key("fp8_format", kChoice).one_of(kFp8Formats).in_variable("ACCELERATE_FP8_FORMAT", "HYBRID"),
    Key("fp8_amax_history_len", kInteger).in_variable("ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"),
    Key("fp8_amax_compute_algo", kChoice)
        .one_of(kFp8AmaxAlgorithms)
        .in_variable("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"),
    Key("fp8_override_linear_precision", kFlags).in_variable("ACCELERATE_FP8_OVERRIDE_", "False"),
    Key("fp8_opt_level", kChoice).one_of(kFp8OptimizationLevels).in_variable("ACCELERATE_FP8_OPT_LEVEL", "O2"),
    Key("fp8_enable_fsdp_float8_all_gather", kFlag).in_variable("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "True"),
    Key("fp8_pad_inner_dim", kFlag, "For mixed_precision fp8: pad products to multiples of 16")
        .in_variable("ACCELERATE_FP8_PAD_INNER_DIM", "True")};
// Accelerate's `accelerate config` writes these names, but its launcher never reads them.
constexpr std::pair<const char*, const char*> kOldFp8Names[] = {{"fp8_amax_history_length", "fp8_amax_history_len"},
                                                                {"fp8_amax_compute_algorithm", "fp8_amax_compute_algo"},
                                                                {"fp8_optimization_level", "fp8_opt_level"}};

// Megatron-LM cannot be launched here. The rows exist so that files of Accelerate can be read, checked and
// written.
constexpr Key kMegatronKeys[] = {
    Key("megatron_lm_tp_degree", kInteger).in_variable("MEGATRON_LM_TP_DEGREE", "1"),
    Key("megatron_lm_pp_degree", kInteger).in_variable("MEGATRON_LM_PP_DEGREE", "1"),
    Key("megatron_lm_use_custom_fsdp", kFlag).in_variable("MEGATRON_LM_USE_CUSTOM_FSDP", "False"),
    Key("megatron_lm_no_load_optim", kFlag).in_variable("MEGATRON_LM_NO_LOAD_OPTIM", "False"),
    Key("megatron_lm_eod_mask_loss", kFlag).in_variable("MEGATRON_LM_EOD_MASK_LOSS", "False"),
    Key("megatron_lm_no_save_optim", kFlag).in_variable("MEGATRON_LM_NO_SAVE_OPTIM", "False"),
    Key("megatron_lm_optimizer_cpu_offload", kFlag).in_variable("MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", "False"),
    Key("megatron_lm_use_precision_aware_optimizer", kFlag)
        .in_variable("MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", "False"),
    Key("megatron_lm_overlap_cpu_optimizer_d2h_h2d", kFlag)
        .in_variable("MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", "False"),
    Key("megatron_lm_decoder_last_pipeline_num_layers", kInteger)
        .in_variable("MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS"),
    Key("megatron_lm_gradient_clipping", kNumber).in_variable("MEGATRON_LM_GRADIENT_CLIPPING", "1.0"),
    Key("megatron_lm_num_micro_batches", kInteger).in_variable("MEGATRON_LM_NUM_MICRO_BATCHES"),
    Key("megatron_lm_sequence_parallelism", kFlag).in_variable("MEGATRON_LM_SEQUENCE_PARALLELISM"),
    Key("megatron_lm_recompute_activations", kFlag).in_variable("MEGATRON_LM_RECOMPUTE_ACTIVATIONS"),
    Key("megatron_lm_use_distributed_optimizer", kFlag).in_variable("MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"),
    Key("megatron_lm_recompute_granularity", kText).in_variable("MEGATRON_LM_RECOMPUTE_GRANULARITY"),
    Key("megatron_lm_recompute_method", kText).in_variable("MEGATRON_LM_RECOMPUTE_METHOD"),
    Key("megatron_lm_recompute_num_layers", kInteger).in_variable("MEGATRON_LM_RECOMPUTE_NUM_LAYERS"),
    Key("megatron_lm_attention_backend", kFlagOrText).in_variable("MEGATRON_LM_ATTENTION_BACKEND"),
    Key("megatron_lm_expert_model_parallel_size", kInteger).in_variable("MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE"),
    Key("megatron_lm_context_parallel_size", kInteger).in_variable("MEGATRON_LM_CONTEXT_PARALLEL_SIZE"),
    Key("megatron_lm_attention_dropout", kNumber).in_variable("MEGATRON_LM_ATTENTION_DROPOUT"),
    Key("megatron_lm_hidden_dropout", kNumber).in_variable("MEGATRON_LM_HIDDEN_DROPOUT"),
    Key("megatron_lm_attention_softmax_in_fp32", kFlag).in_variable("MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32"),
    Key("megatron_lm_expert_tensor_parallel_size", kInteger).in_variable("MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE"),
    Key("megatron_lm_calculate_per_token_loss", kFlag).in_variable("MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"),
    Key("megatron_lm_use_rotary_position_embeddings", kFlag).in_variable("MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS")};

// mpirun_ccl occurs in files of versions that still supported oneCCL.
constexpr Key kMpirunKeys[] = {Key("mpirun_hostfile", kText, kMpirunHostfileHelp)
                                   .asked("Please enter the path to the hostfile to use with mpirun", "~/hostfile"),
                               Key("mpirun_ccl", kText)};

constexpr Names kDynamoModes = {"default", "reduce-overhead", "max-autotune"};
constexpr Names kDynamoBackends = {
    "NO",          "EAGER",  "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER",          "NVPRIMS_NVFUSER",     "CUDAGRAPHS",
    "OFI",         "FX2TRT", "ONNXRT",    "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM",
    "HPU_BACKEND", "NEURON", "IPEX"};

constexpr Key kDynamoKeys[] = {
    Key("dynamo_backend", kChoice).one_of(kDynamoBackends).in_variable("ACCELERATE_DYNAMO_BACKEND", "NO"),
    Key("dynamo_mode", kChoice).one_of(kDynamoModes).in_variable("ACCELERATE_DYNAMO_MODE", "default"),
    Key("dynamo_use_fullgraph", kFlag).in_variable("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"),
    Key("dynamo_use_dynamic", kFlag).in_variable("ACCELERATE_DYNAMO_USE_DYNAMIC", "False"),
    Key("dynamo_use_regional_compilation", kFlag).in_variable("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False")};

constexpr LaunchSection kSections[] = {
    {"fsdp_config", &LaunchConfig::fsdp_config, "fsdp_", "use_fsdp", false, kFsdpKeys, kOldFsdpNames},
    {"deepspeed_config", &LaunchConfig::deepspeed_config, "", "use_deepspeed", false, kDeepSpeedKeys},
    {"parallelism_config", &LaunchConfig::parallelism_config, "", "use_parallelism_config", true, kParallelismKeys},
    {"fp8_config", &LaunchConfig::fp8_config, "fp8_", "mixed_precision fp8", true, kFp8Keys, kOldFp8Names},
    {"megatron_lm_config", &LaunchConfig::megatron_lm_config, "", nullptr, true, kMegatronKeys},
    {"mpirun_config", &LaunchConfig::mpirun_config, "", nullptr, false, kMpirunKeys},
    {"dynamo_config", &LaunchConfig::dynamo_config, "dynamo_", nullptr, true, kDynamoKeys}};

}  // namespace

std::span<const LaunchSection> launch_sections() { return kSections; }

}  // namespace accel
