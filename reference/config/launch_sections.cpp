// The sections of the configuration file, and their keys. Keys that nothing here reads say why: they are kept, so that
// one file serves both programs, and reported. Questions are Accelerate's, word for word.
// Source: accelerate/commands/launch.py; accelerate/utils/launch.py.
#include <algorithm>

#include "reference/config/accelerator_fields.hpp"
#include "reference/config/launch_keys.hpp"
#include "reference/config/sharding.hpp"

namespace accel {
namespace {

using enum KeyKind;
using Key = LaunchKey;
using Names = std::initializer_list<const char*>;

constexpr Names kFsdpVersions = {"1", "2"};

constexpr Key kFsdpKeys[] = {
    Key("fsdp_version", kInteger, "FSDP version, which decides which of the other keys apply")
        .one_of(kFsdpVersions)
        .in_variable("FSDP_VERSION", "1")
        .asked("What should be your FSDP version?", "2"),
    Key("fsdp_sharding_strategy", kChoice,
        "Version 1: what is sharded across ranks, and when gathered parameters are freed")
        .one_of(kShardingStrategies)
        .in_variable("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
        .asked("What should be your sharding strategy?", "FULL_SHARD"),
    Key("fsdp_reshard_after_forward", kFlagOrText,
        "Version 2: free gathered parameters between forward and backward; true or false")
        .in_variable("FSDP_RESHARD_AFTER_FORWARD", "true")
        .asked("Do you want to enable resharding after forward?", "yes"),
    Key("fsdp_offload_params", kFlag, "Keep parameters, gradients and optimizer state in host memory")
        .in_variable("FSDP_OFFLOAD_PARAMS", "false")
        .asked("Do you want to offload parameters and gradients to CPU?", "no"),
    Key("fsdp_min_num_params", kInteger, "For SIZE_BASED_WRAP: minimum number of parameters of a unit")
        .in_variable("FSDP_MIN_NUM_PARAMS", "100000000")
        .asked("What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
               "100000000"),
    Key("fsdp_auto_wrap_policy", kChoice, "How modules are grouped into units that are gathered one at a time")
        .one_of(kWrapPolicies)
        .in_variable("FSDP_AUTO_WRAP_POLICY")
        .asked("What should be your auto wrap policy?", "TRANSFORMER_BASED_WRAP"),
    Key("fsdp_transformer_layer_cls_to_wrap", kText,
        "For TRANSFORMER_BASED_WRAP: module classes to wrap, as in Block,Head")
        .in_variable("FSDP_TRANSFORMER_CLS_TO_WRAP")
        .asked("Specify the comma-separated list of layer class names (case-sensitive) to wrap, e.g. `Block` or "
               "`Encoder,Decoder`"),
    Key("fsdp_backward_prefetch", kChoice, "Version 1: when backward gathers the parameters of the next unit")
        .one_of(kBackwardPrefetches)
        .in_variable("FSDP_BACKWARD_PREFETCH")
        .asked("What should be your FSDP's backward prefetch policy?", "BACKWARD_PRE"),
    Key("fsdp_state_dict_type", kChoice, "Format of the model in checkpoints")
        .one_of(kStateDictTypes)
        .in_variable("FSDP_STATE_DICT_TYPE")
        .asked("What should be your FSDP's state dict type?"),
    Key("fsdp_forward_prefetch", kFlag, "Version 1: gather the next unit early in forward")
        .in_variable("FSDP_FORWARD_PREFETCH", "false")
        .asked("Do you want to enable FSDP's forward prefetch policy?", "no"),
    Key("fsdp_use_orig_params", kFlag, "Version 1: keep the original parameters instead of flattened ones")
        .in_variable("FSDP_USE_ORIG_PARAMS", "true")
        .asked("Do you want to enable FSDP's `use_orig_params` feature?", "yes"),
    Key("fsdp_cpu_ram_efficient_loading", kFlag, "Only rank 0 loads the weights and broadcasts them")
        .in_variable("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
        .asked("Do you want to enable CPU RAM efficient model loading?", "yes"),
    Key("fsdp_sync_module_states", kFlag, "Version 1: broadcast the parameters of rank 0 in prepare")
        .in_variable("FSDP_SYNC_MODULE_STATES", "true")
        .asked("Do you want each individually wrapped FSDP unit to broadcast module parameters from rank 0 at the "
               "start?",
               "yes"),
    Key("fsdp_activation_checkpointing", kFlag, "Recompute activations in backward")
        .in_variable("FSDP_ACTIVATION_CHECKPOINTING", "false")
        .asked("Do you want to enable FSDP activation checkpointing?", "no"),
    Key("fsdp_activation_checkpointing_offload", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    Key("fsdp_ignored_modules", kText, "Modules that are not sharded: a regular expression of names")
        .in_variable("FSDP_IGNORED_MODULES")};
constexpr std::pair<const char*, const char*> kOldFsdpNames[] = {
    {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"}};

constexpr Names kZeroStages = {"0", "1", "2", "3"};
constexpr const char* kMachinesReason =
    "a job runs on the machines on which `accel launch` is started, and on the GPUs of gpu_ids";
constexpr Names kMultinodeLaunchers = {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"};

constexpr Key kDeepSpeedKeys[] = {
    Key("deepspeed_config_file", kText, "DeepSpeed JSON file, which replaces the keys below")
        .in_variable("ACCELERATE_DEEPSPEED_CONFIG_FILE")
        .asked("Please enter the path to the json DeepSpeed config file"),
    Key("zero_stage", kInteger, "ZeRO stage: 0 shards nothing, 1 optimizer state, 2 also gradients, 3 also parameters")
        .one_of(kZeroStages)
        .in_variable("ACCELERATE_DEEPSPEED_ZERO_STAGE")
        .asked("What should be your DeepSpeed's ZeRO optimization stage?", "2"),
    Key("gradient_accumulation_steps", kNumberOrAuto, kGradientAccumulationStepsHelp)
        .in_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
        .asked("How many gradient accumulation steps you're passing in your script?", "1"),
    Key("gradient_clipping", kNumberOrAuto, "Maximum norm of gradients")
        .in_variable("ACCELERATE_GRADIENT_CLIPPING")
        .asked("What is the gradient clipping value?", "1.0"),
    Key("offload_optimizer_device", kChoice, "Where optimizer state is kept, from stage 2")
        .one_of(kOffloadDevices)
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE")
        .asked("Where to offload optimizer states?", "none"),
    Key("offload_param_device", kChoice, "Where parameters are kept, in stage 3")
        .one_of(kOffloadDevices)
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE")
        .asked("Where to offload parameters?", "none"),
    Key("offload_optimizer_nvme_path", kText, "Folder for offload_optimizer_device nvme")
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH")
        .asked("Nvme Path to offload optimizer states?", "/nvme"),
    Key("offload_param_nvme_path", kText, "Folder for offload_param_device nvme")
        .in_variable("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH")
        .asked("Nvme Path to offload parameters?", "/nvme"),
    Key("zero3_init_flag", kFlag, "Warns: models are created whole before they are sharded")
        .in_variable("ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    Key("zero3_save_16bit_model", kFlag, "Stage 3: save unsharded weights in 16 bits")
        .in_variable("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL")
        .asked("Do you want to save 16-bit model weights when using ZeRO Stage-3?", "no"),
    Key("deepspeed_moe_layer_cls_names", kText,
        "Stage 3: classes of layers with experts, as in Block,Head, which are gathered as a whole")
        .in_variable("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
    Key("deepspeed_hostfile", kText).refused(kMachinesReason),
    Key("deepspeed_exclusion_filter", kText).refused(kMachinesReason),
    Key("deepspeed_inclusion_filter", kText).refused(kMachinesReason),
    Key("deepspeed_multinode_launcher", kChoice)
        .one_of(kMultinodeLaunchers)
        .refused("only 'standard' is supported: start `accel launch` on every machine", "standard")};

constexpr Key kParallelismKeys[] = {
    Key("parallelism_config_dp_replicate_size", kInteger, "Number of replicas of the sharded model")
        .in_variable("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1")
        .asked("What is the data parallelism replicate size?", "1"),
    Key("parallelism_config_dp_shard_size", kInteger, "Number of ranks that shard a replica")
        .in_variable("PARALLELISM_CONFIG_DP_SHARD_SIZE", "1")
        .asked("What is the FSDP shard size?", "1"),
    Key("parallelism_config_tp_size", kInteger, "Number of ranks that share a batch by tensor parallelism")
        .in_variable("PARALLELISM_CONFIG_TP_SIZE", "1")
        .asked("What is the tensor parallelism size?", "1"),
    Key("parallelism_config_cp_size", kInteger, "Number of ranks that share a batch by context parallelism")
        .in_variable("PARALLELISM_CONFIG_CP_SIZE", "1")
        .asked("What is the context parallelism size?", "1"),
    Key("parallelism_config_cp_backend", kChoice, "Implementation of context parallelism")
        .one_of(kCpBackends)
        .in_variable("PARALLELISM_CONFIG_CP_BACKEND", "torch"),
    Key("parallelism_config_cp_comm_strategy", kChoice,
        "Whether attention gathers the keys of all parts of a sequence, or they rotate from rank to rank")
        .one_of(kCpCommStrategies)
        .in_variable("PARALLELISM_CONFIG_CP_COMM_STRATEGY")
        .asked("What is the compute parallelism communication strategy?", "allgather"),
    Key("parallelism_config_sp_size", kInteger, "Number of ranks that share a batch by sequence parallelism")
        .in_variable("PARALLELISM_CONFIG_SP_SIZE", "1"),
    Key("parallelism_config_sp_backend", kChoice, "Implementation of sequence parallelism")
        .one_of(kSpBackends)
        .in_variable("PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"),
    Key("parallelism_config_sp_seq_length", kText, "Length of a complete sequence, which sp_size divides")
        .in_variable("PARALLELISM_CONFIG_SP_SEQ_LENGTH"),
    Key("parallelism_config_sp_seq_length_is_variable", kFlag, "Sequences have different lengths; false needs a length")
        .in_variable("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"),
    Key("parallelism_config_sp_attn_implementation", kText, "Attention in sequence parallelism: sdpa")
        .in_variable("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"),
    Key("parallelism_config_ep_size", kInteger, "Number of ranks that divide the experts of a layer")
        .in_variable("PARALLELISM_CONFIG_EP_SIZE")};

constexpr const char* kOtherFp8Reason = "only the backends TE and MSAMP read it, which are Python packages";
constexpr Names kFp8Backends = {"AO", "TE", "MSAMP"};
constexpr Names kFp8Formats = {"HYBRID", "E4M3", "E5M2"};
constexpr Names kFp8AmaxAlgorithms = {"max", "most_recent"};
constexpr Names kFp8OptimizationLevels = {"O1", "O2"};

constexpr Key kFp8Keys[] = {
    Key("fp8_backend", kChoice, "For mixed_precision fp8: the implementation; only AO is supported")
        .one_of(kFp8Backends)
        .in_variable("ACCELERATE_FP8_BACKEND"),
    Key("fp8_use_autocast_during_eval", kFlag)
        .in_variable("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False")
        .unused(kOtherFp8Reason),
    Key("fp8_margin", kInteger).in_variable("ACCELERATE_FP8_MARGIN", "0").unused(kOtherFp8Reason),
    Key("fp8_interval", kInteger).in_variable("ACCELERATE_FP8_INTERVAL", "1").unused(kOtherFp8Reason),
    Key("fp8_format", kChoice)
        .one_of(kFp8Formats)
        .in_variable("ACCELERATE_FP8_FORMAT", "HYBRID")
        .unused(kOtherFp8Reason),
    Key("fp8_amax_history_len", kInteger)
        .in_variable("ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024")
        .unused(kOtherFp8Reason),
    Key("fp8_amax_compute_algo", kChoice)
        .one_of(kFp8AmaxAlgorithms)
        .in_variable("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent")
        .unused(kOtherFp8Reason),
    Key("fp8_override_linear_precision", kFlags)
        .in_variable("ACCELERATE_FP8_OVERRIDE_", "False")
        .unused(kOtherFp8Reason),
    Key("fp8_opt_level", kChoice)
        .one_of(kFp8OptimizationLevels)
        .in_variable("ACCELERATE_FP8_OPT_LEVEL", "O2")
        .unused(kOtherFp8Reason),
    Key("fp8_enable_fsdp_float8_all_gather", kFlag)
        .in_variable("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "True")
        .unused("weights of sharded models are gathered in bfloat16", "False"),
    Key("fp8_pad_inner_dim", kFlag,
        "For mixed_precision fp8: pad the inner dimension of matrix products to a multiple of 16")
        .in_variable("ACCELERATE_FP8_PAD_INNER_DIM", "True")};
// Accelerate's own `config` writes these names, but its launcher reads only the new ones. Reading both keeps the
// answers.
constexpr std::pair<const char*, const char*> kOldFp8Names[] = {{"fp8_amax_history_length", "fp8_amax_history_len"},
                                                                {"fp8_amax_compute_algorithm", "fp8_amax_compute_algo"},
                                                                {"fp8_optimization_level", "fp8_opt_level"}};

// Ranks refuse values of keys that only one value fits, so that a program's own plugin and a file are treated alike.
constexpr Key kMegatronKeys[] = {
    Key("megatron_lm_tp_degree", kInteger, "Number of ranks that share a batch by tensor parallelism")
        .in_variable("MEGATRON_LM_TP_DEGREE", "1")
        .asked("What is the Tensor Parallelism degree/size?", "1"),
    Key("megatron_lm_pp_degree", kInteger, "Unsupported: an error in the ranks unless it is 1")
        .in_variable("MEGATRON_LM_PP_DEGREE", "1")
        .asked("What is the Pipeline Parallelism degree/size?", "1"),
    Key("megatron_lm_use_custom_fsdp", kFlag, "Shard parameters, gradients and optimizer state")
        .in_variable("MEGATRON_LM_USE_CUSTOM_FSDP", "False"),
    Key("megatron_lm_no_load_optim", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("MEGATRON_LM_NO_LOAD_OPTIM", "False"),
    Key("megatron_lm_eod_mask_loss", kFlag, "The program's own: an error in the ranks if it is true")
        .in_variable("MEGATRON_LM_EOD_MASK_LOSS", "False"),
    Key("megatron_lm_no_save_optim", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("MEGATRON_LM_NO_SAVE_OPTIM", "False"),
    Key("megatron_lm_optimizer_cpu_offload", kFlag, "Keep sharded optimizer state in host memory")
        .in_variable("MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", "False"),
    Key("megatron_lm_use_precision_aware_optimizer", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", "False"),
    Key("megatron_lm_overlap_cpu_optimizer_d2h_h2d", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", "False"),
    Key("megatron_lm_decoder_last_pipeline_num_layers", kInteger, "Unsupported: an error in the ranks")
        .in_variable("MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS"),
    Key("megatron_lm_gradient_clipping", kNumber, "Maximum norm of gradients, to which each step clips; 0: none")
        .in_variable("MEGATRON_LM_GRADIENT_CLIPPING", "1.0")
        .asked("What is the gradient clipping value based on global L2 Norm (0 to disable)?", "1.0"),
    Key("megatron_lm_num_micro_batches", kInteger, "Number of micro-batches per optimizer step")
        .in_variable("MEGATRON_LM_NUM_MICRO_BATCHES"),
    Key("megatron_lm_sequence_parallelism", kFlag,
        "Divide sequences outside of tensor-parallel layers; the model reads it")
        .in_variable("MEGATRON_LM_SEQUENCE_PARALLELISM")
        .asked("Do you want to enable Sequence Parallelism?", "yes"),
    Key("megatron_lm_recompute_activations", kFlag, "Recompute activations in backward")
        .in_variable("MEGATRON_LM_RECOMPUTE_ACTIVATIONS")
        .asked("Do you want to enable selective activation recomputation?", "yes"),
    Key("megatron_lm_use_distributed_optimizer", kFlag, "Shard the optimizer state over data-parallel ranks")
        .in_variable("MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER")
        .asked(
            "Do you want to use distributed optimizer which shards optimizer state and gradients across data parallel "
            "ranks?",
            "yes"),
    Key("megatron_lm_recompute_granularity", kText, "Complete units: an error in the ranks unless it is full")
        .in_variable("MEGATRON_LM_RECOMPUTE_GRANULARITY"),
    Key("megatron_lm_recompute_method", kText, "Each unit: an error in the ranks unless it is uniform")
        .in_variable("MEGATRON_LM_RECOMPUTE_METHOD"),
    Key("megatron_lm_recompute_num_layers", kInteger, "Each unit: an error in the ranks unless it is 1")
        .in_variable("MEGATRON_LM_RECOMPUTE_NUM_LAYERS"),
    Key("megatron_lm_attention_backend", kFlagOrText, "The model's own: an error in the ranks unless it is true")
        .in_variable("MEGATRON_LM_ATTENTION_BACKEND"),
    Key("megatron_lm_expert_model_parallel_size", kInteger, "Number of ranks that divide the experts of a layer")
        .in_variable("MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE"),
    Key("megatron_lm_context_parallel_size", kInteger, "Number of ranks that share a batch by context parallelism")
        .in_variable("MEGATRON_LM_CONTEXT_PARALLEL_SIZE"),
    Key("megatron_lm_attention_dropout", kNumber, "The model's own: an error in the ranks unless it is 0")
        .in_variable("MEGATRON_LM_ATTENTION_DROPOUT"),
    Key("megatron_lm_hidden_dropout", kNumber, "The model's own: an error in the ranks unless it is 0")
        .in_variable("MEGATRON_LM_HIDDEN_DROPOUT"),
    Key("megatron_lm_attention_softmax_in_fp32", kFlag, "The model's own: an error in the ranks unless it is true")
        .in_variable("MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32"),
    Key("megatron_lm_expert_tensor_parallel_size", kInteger, "Unsupported: an error in the ranks unless it is 1")
        .in_variable("MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE"),
    Key("megatron_lm_calculate_per_token_loss", kFlag, "Weight losses by their numbers of items")
        .in_variable("MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS"),
    Key("megatron_lm_use_rotary_position_embeddings", kFlag, "The model's own: an error in the ranks unless it is true")
        .in_variable("MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS")};

// mpirun_ccl appears in files of versions that still supported oneCCL.
constexpr Key kMpirunKeys[] = {Key("mpirun_hostfile", kText, kMpirunHostfileHelp)
                                   .asked("Please enter the path to the hostfile to use with mpirun", "~/hostfile"),
                               Key("mpirun_ccl", kText).unused("oneCCL is not used", "0")};

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
    {"megatron_lm_config", &LaunchConfig::megatron_lm_config, "", "use_megatron_lm", true, kMegatronKeys},
    {"mpirun_config", &LaunchConfig::mpirun_config, "", nullptr, false, kMpirunKeys},
    {"dynamo_config",
     &LaunchConfig::dynamo_config,
     "dynamo_",
     nullptr,
     true,
     kDynamoKeys,
     {},
     "TorchDynamo compiles Python code"}};

}  // namespace

std::span<const LaunchSection> launch_sections() { return kSections; }

}  // namespace accel
