// The sections of the configuration file, and their keys. Keys that nothing here reads say why: they are kept, so that
// one file serves both programs, and reported. Questions are Accelerate's, word for word.
// Source: accelerate/commands/launch.py; accelerate/utils/launch.py.
#include <optional>
#include <type_traits>

#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/plugins/megatron_lm_fields.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using enum KeyKind;
using Key = LaunchKey;
using Names = std::initializer_list<const char*>;
using Fsdp = FullyShardedDataParallelPlugin;
using DeepSpeed = DeepSpeedPlugin;
using Mesh = ParallelismConfig;
using ContextParallel = TorchContextParallelConfig;
using SequenceParallel = DeepSpeedSequenceParallelConfig;
using Megatron = MegatronLMPlugin;

// A text whose rule is about numbers is a number or "auto".
template <typename T>
KeyKind kind_of(const T&, const FieldRule& rule) {
  if (std::is_same_v<T, bool>) return kFlag;
  if (std::is_integral_v<T>) return kInteger;
  if (std::is_floating_point_v<T>) return kNumber;
  if (rule.accepts != nullptr) return kNumberOrAuto;
  return rule.choices.empty() ? kText : kChoice;
}
template <typename T>
KeyKind kind_of(const std::optional<T>&, const FieldRule& rule) {
  return kind_of(T(), rule);
}

// Finds the field of a member in the list of its struct.
template <typename Plugin, typename T>
PluginField field_of(T Plugin::*member) {
  const Plugin plugin;
  const void* const wanted = &(plugin.*member);
  std::optional<PluginField> found;
  for_each_field(plugin, [&](const Field& field, const auto& value) {
    if (&value == wanted) found = {field, kind_of(value, field.rule)};
  });
  ensure(found.has_value() && found->field.variable != nullptr, "no field with a variable has this member");
  return *found;
}

constexpr Names kFsdpVersions = {"1", "2"};

const Key kFsdpKeys[] = {
    Key("fsdp_version", field_of(&Fsdp::fsdp_version), "FSDP version, which decides which of the other keys apply")
        .one_of(kFsdpVersions)
        .otherwise("1")
        .asked("What should be your FSDP version?", "2"),
    Key("fsdp_sharding_strategy", field_of(&Fsdp::sharding_strategy),
        "Version 1: what is sharded across ranks, and when gathered parameters are freed")
        .otherwise("FULL_SHARD")
        .asked("What should be your sharding strategy?", "FULL_SHARD"),
    Key("fsdp_reshard_after_forward", field_of(&Fsdp::reshard_after_forward),
        "Version 2: free gathered parameters between forward and backward; true or false")
        .as(kFlagOrText)
        .otherwise("true")
        .asked("Do you want to enable resharding after forward?", "yes"),
    Key("fsdp_offload_params", field_of(&Fsdp::cpu_offload),
        "Keep parameters, gradients and optimizer state in host memory")
        .otherwise("false")
        .asked("Do you want to offload parameters and gradients to CPU?", "no"),
    Key("fsdp_min_num_params", field_of(&Fsdp::min_num_params),
        "For SIZE_BASED_WRAP: minimum number of parameters of a unit")
        .otherwise("100000000")
        .asked("What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
               "100000000"),
    Key("fsdp_auto_wrap_policy", field_of(&Fsdp::auto_wrap_policy),
        "How modules are grouped into units that are gathered one at a time")
        .asked("What should be your auto wrap policy?", "TRANSFORMER_BASED_WRAP"),
    Key("fsdp_transformer_layer_cls_to_wrap", field_of(&Fsdp::transformer_cls_names_to_wrap),
        "For TRANSFORMER_BASED_WRAP: module classes to wrap, as in Block,Head")
        .asked("Specify the comma-separated list of layer class names (case-sensitive) to wrap, e.g. `Block` or "
               "`Encoder,Decoder`"),
    Key("fsdp_backward_prefetch", field_of(&Fsdp::backward_prefetch),
        "Version 1: when backward gathers the parameters of the next unit")
        .asked("What should be your FSDP's backward prefetch policy?", "BACKWARD_PRE"),
    Key("fsdp_state_dict_type", field_of(&Fsdp::state_dict_type), "Format of the model in checkpoints")
        .asked("What should be your FSDP's state dict type?"),
    Key("fsdp_forward_prefetch", field_of(&Fsdp::forward_prefetch), "Version 1: gather the next unit early in forward")
        .otherwise("false")
        .asked("Do you want to enable FSDP's forward prefetch policy?", "no"),
    Key("fsdp_use_orig_params", field_of(&Fsdp::use_orig_params),
        "Version 1: keep the original parameters instead of flattened ones")
        .otherwise("true")
        .asked("Do you want to enable FSDP's `use_orig_params` feature?", "yes"),
    Key("fsdp_cpu_ram_efficient_loading", field_of(&Fsdp::cpu_ram_efficient_loading),
        "Only rank 0 loads the weights and broadcasts them")
        .otherwise("true")
        .asked("Do you want to enable CPU RAM efficient model loading?", "yes"),
    Key("fsdp_sync_module_states", field_of(&Fsdp::sync_module_states),
        "Version 1: broadcast the parameters of rank 0 in prepare")
        .otherwise("true")
        .asked("Do you want each individually wrapped FSDP unit to broadcast module parameters from rank 0 at the "
               "start?",
               "yes"),
    Key("fsdp_activation_checkpointing", field_of(&Fsdp::activation_checkpointing), "Recompute activations in backward")
        .otherwise("false")
        .asked("Do you want to enable FSDP activation checkpointing?", "no"),
    Key("fsdp_activation_checkpointing_offload", kFlag, "Unsupported: an error in the ranks if it is true")
        .in_variable("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    Key("fsdp_ignored_modules", field_of(&Fsdp::ignored_modules),
        "Modules that are not sharded: a regular expression of names")};
constexpr std::pair<const char*, const char*> kOldFsdpNames[] = {
    {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"}};

constexpr Names kZeroStages = {"0", "1", "2", "3"};
constexpr const char* kMachinesReason =
    "a job runs on the machines on which `accel launch` is started, and on the GPUs of gpu_ids";
constexpr Names kMultinodeLaunchers = {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"};

const Key kDeepSpeedKeys[] = {
    Key("deepspeed_config_file", field_of(&DeepSpeed::hf_ds_config),
        "DeepSpeed JSON file, which replaces the keys below")
        .asked("Please enter the path to the json DeepSpeed config file"),
    Key("zero_stage", field_of(&DeepSpeed::zero_stage),
        "ZeRO stage: 0 shards nothing, 1 optimizer state, 2 also gradients, 3 also parameters")
        .one_of(kZeroStages)
        .asked("What should be your DeepSpeed's ZeRO optimization stage?", "2"),
    Key("gradient_accumulation_steps", field_of(&DeepSpeed::gradient_accumulation_steps),
        kGradientAccumulationStepsHelp)
        .asked("How many gradient accumulation steps you're passing in your script?", "1"),
    Key("gradient_clipping", field_of(&DeepSpeed::gradient_clipping), "Maximum norm of gradients")
        .asked("What is the gradient clipping value?", "1.0"),
    Key("offload_optimizer_device", field_of(&DeepSpeed::offload_optimizer_device),
        "Where optimizer state is kept, from stage 2")
        .asked("Where to offload optimizer states?", "none"),
    Key("offload_param_device", field_of(&DeepSpeed::offload_param_device), "Where parameters are kept, in stage 3")
        .asked("Where to offload parameters?", "none"),
    Key("offload_optimizer_nvme_path", field_of(&DeepSpeed::offload_optimizer_nvme_path),
        "Folder for offload_optimizer_device nvme")
        .asked("Nvme Path to offload optimizer states?", "/nvme"),
    Key("offload_param_nvme_path", field_of(&DeepSpeed::offload_param_nvme_path),
        "Folder for offload_param_device nvme")
        .asked("Nvme Path to offload parameters?", "/nvme"),
    Key("zero3_init_flag", field_of(&DeepSpeed::zero3_init_flag),
        "Warns: models are created whole before they are sharded"),
    Key("zero3_save_16bit_model", field_of(&DeepSpeed::zero3_save_16bit_model),
        "Stage 3: save unsharded weights in 16 bits")
        .asked("Do you want to save 16-bit model weights when using ZeRO Stage-3?", "no"),
    Key("deepspeed_moe_layer_cls_names", field_of(&DeepSpeed::transformer_moe_cls_names),
        "Stage 3: classes of layers with experts, as in Block,Head, which are gathered as a whole"),
    Key("deepspeed_hostfile", kText).refused(kMachinesReason),
    Key("deepspeed_exclusion_filter", kText).refused(kMachinesReason),
    Key("deepspeed_inclusion_filter", kText).refused(kMachinesReason),
    Key("deepspeed_multinode_launcher", kChoice)
        .one_of(kMultinodeLaunchers)
        .refused("only 'standard' is supported: start `accel launch` on every machine", "standard")};

const Key kParallelismKeys[] = {
    Key("parallelism_config_dp_replicate_size", field_of(&Mesh::dp_replicate_size),
        "Number of replicas of the sharded model")
        .otherwise("1")
        .asked("What is the data parallelism replicate size?", "1"),
    Key("parallelism_config_dp_shard_size", field_of(&Mesh::dp_shard_size), "Number of ranks that shard a replica")
        .otherwise("1")
        .asked("What is the FSDP shard size?", "1"),
    Key("parallelism_config_tp_size", field_of(&Mesh::tp_size),
        "Number of ranks that share a batch by tensor parallelism")
        .otherwise("1")
        .asked("What is the tensor parallelism size?", "1"),
    Key("parallelism_config_cp_size", field_of(&Mesh::cp_size),
        "Number of ranks that share a batch by context parallelism")
        .otherwise("1")
        .asked("What is the context parallelism size?", "1"),
    Key("parallelism_config_cp_backend", field_of(&Mesh::cp_backend), "Implementation of context parallelism")
        .otherwise("torch"),
    Key("parallelism_config_cp_comm_strategy", field_of(&ContextParallel::cp_comm_strategy),
        "Whether attention gathers the keys of all parts of a sequence, or they rotate from rank to rank")
        .asked("What is the compute parallelism communication strategy?", "allgather"),
    Key("parallelism_config_sp_size", field_of(&Mesh::sp_size),
        "Number of ranks that share a batch by sequence parallelism")
        .otherwise("1"),
    Key("parallelism_config_sp_backend", field_of(&Mesh::sp_backend), "Implementation of sequence parallelism")
        .otherwise("deepspeed"),
    Key("parallelism_config_sp_seq_length", field_of(&SequenceParallel::sp_seq_length),
        "Length of a complete sequence, which sp_size divides")
        .as(kText),
    Key("parallelism_config_sp_seq_length_is_variable", field_of(&SequenceParallel::sp_seq_length_is_variable),
        "Sequences have different lengths; false needs a length"),
    Key("parallelism_config_sp_attn_implementation", field_of(&SequenceParallel::sp_attn_implementation),
        "Attention in sequence parallelism: sdpa")
        .as(kText),
    Key("parallelism_config_ep_size", field_of(&Mesh::ep_size), "Number of ranks that divide the experts of a layer")};

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
const Key kMegatronKeys[] = {
    Key("megatron_lm_tp_degree", field_of(&Megatron::tp_degree),
        "Number of ranks that share a batch by tensor parallelism")
        .otherwise("1")
        .asked("What is the Tensor Parallelism degree/size?", "1"),
    Key("megatron_lm_pp_degree", field_of(&Megatron::pp_degree), "Unsupported: an error in the ranks unless it is 1")
        .otherwise("1")
        .asked("What is the Pipeline Parallelism degree/size?", "1"),
    Key("megatron_lm_use_custom_fsdp", field_of(&Megatron::use_custom_fsdp),
        "Shard parameters, gradients and optimizer state")
        .otherwise("False"),
    Key("megatron_lm_no_load_optim", field_of(&Megatron::no_load_optim),
        "Unsupported: an error in the ranks if it is true")
        .otherwise("False"),
    Key("megatron_lm_eod_mask_loss", field_of(&Megatron::eod_mask_loss),
        "The program's own: an error in the ranks if it is true")
        .otherwise("False"),
    Key("megatron_lm_no_save_optim", field_of(&Megatron::no_save_optim),
        "Unsupported: an error in the ranks if it is true")
        .otherwise("False"),
    Key("megatron_lm_optimizer_cpu_offload", field_of(&Megatron::optimizer_cpu_offload),
        "Keep sharded optimizer state in host memory")
        .otherwise("False"),
    Key("megatron_lm_use_precision_aware_optimizer", field_of(&Megatron::use_precision_aware_optimizer),
        "Unsupported: an error in the ranks if it is true")
        .otherwise("False"),
    Key("megatron_lm_overlap_cpu_optimizer_d2h_h2d", field_of(&Megatron::overlap_cpu_optimizer_d2h_h2d),
        "Unsupported: an error in the ranks if it is true")
        .otherwise("False"),
    Key("megatron_lm_decoder_last_pipeline_num_layers", field_of(&Megatron::decoder_last_pipeline_num_layers),
        "Unsupported: an error in the ranks"),
    Key("megatron_lm_gradient_clipping", field_of(&Megatron::gradient_clipping),
        "Maximum norm of gradients, to which each step clips; 0: none")
        .otherwise("1.0")
        .asked("What is the gradient clipping value based on global L2 Norm (0 to disable)?", "1.0"),
    Key("megatron_lm_num_micro_batches", field_of(&Megatron::num_micro_batches),
        "Number of micro-batches per optimizer step"),
    Key("megatron_lm_sequence_parallelism", field_of(&Megatron::sequence_parallelism),
        "Divide sequences outside of tensor-parallel layers; the model reads it")
        .asked("Do you want to enable Sequence Parallelism?", "yes"),
    Key("megatron_lm_recompute_activations", field_of(&Megatron::recompute_activations),
        "Recompute activations in backward")
        .asked("Do you want to enable selective activation recomputation?", "yes"),
    Key("megatron_lm_use_distributed_optimizer", field_of(&Megatron::use_distributed_optimizer),
        "Shard the optimizer state over data-parallel ranks")
        .asked(
            "Do you want to use distributed optimizer which shards optimizer state and gradients across data parallel "
            "ranks?",
            "yes"),
    Key("megatron_lm_recompute_granularity", field_of(&Megatron::recompute_granularity),
        "Complete units: an error in the ranks unless it is full")
        .as(kText),
    Key("megatron_lm_recompute_method", field_of(&Megatron::recompute_method),
        "Each unit: an error in the ranks unless it is uniform")
        .as(kText),
    Key("megatron_lm_recompute_num_layers", field_of(&Megatron::recompute_num_layers),
        "Each unit: an error in the ranks unless it is 1"),
    Key("megatron_lm_attention_backend", field_of(&Megatron::attention_backend),
        "The model's own: an error in the ranks unless it is true")
        .as(kFlagOrText),
    Key("megatron_lm_expert_model_parallel_size", field_of(&Megatron::expert_model_parallel_size),
        "Number of ranks that divide the experts of a layer"),
    Key("megatron_lm_context_parallel_size", field_of(&Megatron::context_parallel_size),
        "Number of ranks that share a batch by context parallelism"),
    Key("megatron_lm_attention_dropout", field_of(&Megatron::attention_dropout),
        "The model's own: an error in the ranks unless it is 0"),
    Key("megatron_lm_hidden_dropout", field_of(&Megatron::hidden_dropout),
        "The model's own: an error in the ranks unless it is 0"),
    Key("megatron_lm_attention_softmax_in_fp32", field_of(&Megatron::attention_softmax_in_fp32),
        "The model's own: an error in the ranks unless it is true"),
    Key("megatron_lm_expert_tensor_parallel_size", field_of(&Megatron::expert_tensor_parallel_size),
        "Unsupported: an error in the ranks unless it is 1"),
    Key("megatron_lm_calculate_per_token_loss", field_of(&Megatron::calculate_per_token_loss),
        "Weight losses by their numbers of items"),
    Key("megatron_lm_use_rotary_position_embeddings", field_of(&Megatron::use_rotary_position_embeddings),
        "The model's own: an error in the ranks unless it is true")};

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

const LaunchSection kSections[] = {
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
