#include "reference/config/launch_keys.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "reference/config/environment.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

using enum KeyKind;

constexpr std::initializer_list<const char*> kDynamoModes = {"default", "reduce-overhead", "max-autotune"};
constexpr std::initializer_list<const char*> kDynamoBackends = {
    "NO",          "EAGER",  "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER",          "NVPRIMS_NVFUSER",     "CUDAGRAPHS",
    "OFI",         "FX2TRT", "ONNXRT",    "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM",
    "HPU_BACKEND", "NEURON", "IPEX"};
constexpr std::initializer_list<const char*> kMultinodeLaunchers = {"pdsh",  "standard", "openmpi", "mvapich",
                                                                    "mpich", "nossh",    "slurm"};

constexpr SectionKey kFp8Keys[] = {
    {"fp8_backend",
     kChoice,
     "ACCELERATE_FP8_BACKEND",
     nullptr,
     {"AO", "TE", "MSAMP"},
     "Of mixed_precision fp8: whose scaling; AO, which is built in"},
    {"fp8_use_autocast_during_eval", kFlag, "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False"},
    {"fp8_margin", kInteger, "ACCELERATE_FP8_MARGIN", "0"},
    {"fp8_interval", kInteger, "ACCELERATE_FP8_INTERVAL", "1"},
    {"fp8_format", kChoice, "ACCELERATE_FP8_FORMAT", "HYBRID", {"HYBRID", "E4M3", "E5M2"}},
    {"fp8_amax_history_len", kInteger, "ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"},
    {"fp8_amax_compute_algo", kChoice, "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent", {"max", "most_recent"}},
    {"fp8_override_linear_precision", kFlags, "ACCELERATE_FP8_OVERRIDE_", "False"},
    {"fp8_opt_level", kChoice, "ACCELERATE_FP8_OPT_LEVEL", "O2", {"O1", "O2"}},
    {"fp8_enable_fsdp_float8_all_gather", kFlag, "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "True"},
    {"fp8_pad_inner_dim",
     kFlag,
     "ACCELERATE_FP8_PAD_INNER_DIM",
     "True",
     {},
     "Of mixed_precision fp8: products are padded to multiples of 16"}};
// Accelerate's own questions write these, and nothing of it reads them.
constexpr std::pair<const char*, const char*> kOldFp8Names[] = {{"fp8_amax_history_length", "fp8_amax_history_len"},
                                                                {"fp8_amax_compute_algorithm", "fp8_amax_compute_algo"},
                                                                {"fp8_optimization_level", "fp8_opt_level"}};

constexpr SectionKey kDeepSpeedKeys[] = {
    {"deepspeed_config_file",
     kText,
     "ACCELERATE_DEEPSPEED_CONFIG_FILE",
     nullptr,
     {},
     "A DeepSpeed JSON file, in place of the keys below"},
    {"zero_stage",
     kInteger,
     "ACCELERATE_DEEPSPEED_ZERO_STAGE",
     nullptr,
     {"0", "1", "2", "3"},
     "What is divided over ranks: nothing, optimizer state, gradients too, parameters too"},
    {"gradient_accumulation_steps",
     kNumberOrAuto,
     "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
     nullptr,
     {},
     "Micro-batches in an optimizer step"},
    {"gradient_clipping",
     kNumberOrAuto,
     "ACCELERATE_GRADIENT_CLIPPING",
     nullptr,
     {},
     "The norm that gradients are clipped to"},
    {"offload_optimizer_device", kChoice, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", nullptr, kOffloadDevices,
     "Where optimizer state lies, from stage 2"},
    {"offload_param_device", kChoice, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", nullptr, kOffloadDevices,
     "Where parameters lie, in stage 3"},
    {"offload_optimizer_nvme_path",
     kText,
     "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
     nullptr,
     {},
     "Folder for offload_optimizer_device nvme"},
    {"offload_param_nvme_path",
     kText,
     "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
     nullptr,
     {},
     "Folder for offload_param_device nvme"},
    {"zero3_init_flag", kFlag, "ACCELERATE_DEEPSPEED_ZERO3_INIT", nullptr, {}, "Accepted, without effect"},
    {"zero3_save_16bit_model",
     kFlag,
     "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
     nullptr,
     {},
     "Weights of stage 3 are saved whole, in 16 bits"},
    {"deepspeed_moe_layer_cls_names", kText, "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", nullptr},
    {"deepspeed_hostfile", kText, nullptr, nullptr},
    {"deepspeed_exclusion_filter", kText, nullptr, nullptr},
    {"deepspeed_inclusion_filter", kText, nullptr, nullptr},
    {"deepspeed_multinode_launcher", kChoice, nullptr, nullptr, kMultinodeLaunchers}};

constexpr SectionKey kFsdpKeys[] = {
    {"fsdp_version", kInteger, "FSDP_VERSION", "1", {"1", "2"}, "Whose names the other keys are"},
    {"fsdp_sharding_strategy", kChoice, "FSDP_SHARDING_STRATEGY", "FULL_SHARD", kShardingStrategies,
     "Version 1: what is divided over ranks, and when it is freed"},
    {"fsdp_reshard_after_forward",
     kFlagOrText,
     "FSDP_RESHARD_AFTER_FORWARD",
     "true",
     {},
     "Version 2: parameters are freed between forward and backward; true or false"},
    {"fsdp_offload_params",
     kFlag,
     "FSDP_OFFLOAD_PARAMS",
     "false",
     {},
     "Parameters, gradients and optimizer state in host memory"},
    {"fsdp_min_num_params",
     kInteger,
     "FSDP_MIN_NUM_PARAMS",
     "100000000",
     {},
     "Of SIZE_BASED_WRAP: parameters of a unit, at least"},
    {"fsdp_auto_wrap_policy", kChoice, "FSDP_AUTO_WRAP_POLICY", nullptr, kWrapPolicies,
     "Which modules are gathered one at a time"},
    {"fsdp_transformer_layer_cls_to_wrap",
     kText,
     "FSDP_TRANSFORMER_CLS_TO_WRAP",
     nullptr,
     {},
     "Of TRANSFORMER_BASED_WRAP: classes of modules, as in Block,Head"},
    {"fsdp_backward_prefetch", kChoice, "FSDP_BACKWARD_PREFETCH", nullptr, kBackwardPrefetches,
     "Version 1: when the next unit's parameters are gathered"},
    {"fsdp_state_dict_type", kChoice, "FSDP_STATE_DICT_TYPE", nullptr, kStateDictTypes,
     "How checkpoints hold the model"},
    {"fsdp_forward_prefetch", kFlag, "FSDP_FORWARD_PREFETCH", "false", {}, "Version 1: gather a unit ahead in forward"},
    {"fsdp_use_orig_params", kFlag, "FSDP_USE_ORIG_PARAMS", "true", {}, "Version 1: how parameters lie in shards"},
    {"fsdp_cpu_ram_efficient_loading",
     kFlag,
     "FSDP_CPU_RAM_EFFICIENT_LOADING",
     "true",
     {},
     "Rank 0 alone loads, and sends"},
    {"fsdp_sync_module_states",
     kFlag,
     "FSDP_SYNC_MODULE_STATES",
     "true",
     {},
     "Version 1: rank 0's parameters to all at prepare"},
    {"fsdp_activation_checkpointing",
     kFlag,
     "FSDP_ACTIVATION_CHECKPOINTING",
     "false",
     {},
     "Recompute activations in backward"},
    {"fsdp_activation_checkpointing_offload", kFlag, "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"},
    {"fsdp_ignored_modules",
     kText,
     "FSDP_IGNORED_MODULES",
     nullptr,
     {},
     "Modules that stay whole: a regular expression of names"}};
constexpr std::pair<const char*, const char*> kOldFsdpNames[] = {
    {"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"}};

constexpr SectionKey kParallelismKeys[] = {
    {"parallelism_config_dp_replicate_size",
     kInteger,
     "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
     "1",
     {},
     "Replicas of the sharded model"},
    {"parallelism_config_dp_shard_size",
     kInteger,
     "PARALLELISM_CONFIG_DP_SHARD_SIZE",
     "1",
     {},
     "Ranks that a replica is divided over"},
    {"parallelism_config_tp_size",
     kInteger,
     "PARALLELISM_CONFIG_TP_SIZE",
     "1",
     {},
     "Ranks that share a batch by tensor parallelism"},
    {"parallelism_config_cp_size",
     kInteger,
     "PARALLELISM_CONFIG_CP_SIZE",
     "1",
     {},
     "Ranks that share a batch by context parallelism"},
    {"parallelism_config_cp_backend", kChoice, "PARALLELISM_CONFIG_CP_BACKEND", "torch", {"torch"}},
    {"parallelism_config_cp_comm_strategy",
     kChoice,
     "PARALLELISM_CONFIG_CP_COMM_STRATEGY",
     nullptr,
     {"allgather", "alltoall"}},
    {"parallelism_config_sp_size",
     kInteger,
     "PARALLELISM_CONFIG_SP_SIZE",
     "1",
     {},
     "Ranks that share a batch by sequence parallelism"},
    {"parallelism_config_sp_backend", kChoice, "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed", {"deepspeed"}},
    {"parallelism_config_sp_seq_length", kText, "PARALLELISM_CONFIG_SP_SEQ_LENGTH", nullptr},
    {"parallelism_config_sp_seq_length_is_variable", kFlag, "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", nullptr},
    {"parallelism_config_sp_attn_implementation", kText, "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", nullptr}};

constexpr SectionKey kMegatronKeys[] = {
    {"megatron_lm_tp_degree", kInteger, "MEGATRON_LM_TP_DEGREE", "1"},
    {"megatron_lm_pp_degree", kInteger, "MEGATRON_LM_PP_DEGREE", "1"},
    {"megatron_lm_use_custom_fsdp", kFlag, "MEGATRON_LM_USE_CUSTOM_FSDP", "False"},
    {"megatron_lm_no_load_optim", kFlag, "MEGATRON_LM_NO_LOAD_OPTIM", "False"},
    {"megatron_lm_eod_mask_loss", kFlag, "MEGATRON_LM_EOD_MASK_LOSS", "False"},
    {"megatron_lm_no_save_optim", kFlag, "MEGATRON_LM_NO_SAVE_OPTIM", "False"},
    {"megatron_lm_optimizer_cpu_offload", kFlag, "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD", "False"},
    {"megatron_lm_use_precision_aware_optimizer", kFlag, "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER", "False"},
    {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", kFlag, "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D", "False"},
    {"megatron_lm_decoder_last_pipeline_num_layers", kInteger, "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS", nullptr},
    {"megatron_lm_gradient_clipping", kNumber, "MEGATRON_LM_GRADIENT_CLIPPING", "1.0"},
    {"megatron_lm_num_micro_batches", kInteger, "MEGATRON_LM_NUM_MICRO_BATCHES", nullptr},
    {"megatron_lm_sequence_parallelism", kFlag, "MEGATRON_LM_SEQUENCE_PARALLELISM", nullptr},
    {"megatron_lm_recompute_activations", kFlag, "MEGATRON_LM_RECOMPUTE_ACTIVATIONS", nullptr},
    {"megatron_lm_use_distributed_optimizer", kFlag, "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", nullptr},
    {"megatron_lm_recompute_granularity", kText, "MEGATRON_LM_RECOMPUTE_GRANULARITY", nullptr},
    {"megatron_lm_recompute_method", kText, "MEGATRON_LM_RECOMPUTE_METHOD", nullptr},
    {"megatron_lm_recompute_num_layers", kInteger, "MEGATRON_LM_RECOMPUTE_NUM_LAYERS", nullptr},
    {"megatron_lm_attention_backend", kFlagOrText, "MEGATRON_LM_ATTENTION_BACKEND", nullptr},
    {"megatron_lm_expert_model_parallel_size", kInteger, "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE", nullptr},
    {"megatron_lm_context_parallel_size", kInteger, "MEGATRON_LM_CONTEXT_PARALLEL_SIZE", nullptr},
    {"megatron_lm_attention_dropout", kNumber, "MEGATRON_LM_ATTENTION_DROPOUT", nullptr},
    {"megatron_lm_hidden_dropout", kNumber, "MEGATRON_LM_HIDDEN_DROPOUT", nullptr},
    {"megatron_lm_attention_softmax_in_fp32", kFlag, "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32", nullptr},
    {"megatron_lm_expert_tensor_parallel_size", kInteger, "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE", nullptr},
    {"megatron_lm_calculate_per_token_loss", kFlag, "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", nullptr},
    {"megatron_lm_use_rotary_position_embeddings", kFlag, "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS", nullptr}};

// mpirun_ccl: files of versions before oneCCL went out of use.
constexpr SectionKey kMpirunKeys[] = {
    {"mpirun_hostfile", kText, nullptr, nullptr, {}, "Let mpirun start the ranks on the hosts of this file"},
    {"mpirun_ccl", kText, nullptr, nullptr}};

constexpr SectionKey kDynamoKeys[] = {
    {"dynamo_backend", kChoice, "ACCELERATE_DYNAMO_BACKEND", "NO", kDynamoBackends},
    {"dynamo_mode", kChoice, "ACCELERATE_DYNAMO_MODE", "default", kDynamoModes},
    {"dynamo_use_fullgraph", kFlag, "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
    {"dynamo_use_dynamic", kFlag, "ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
    {"dynamo_use_regional_compilation", kFlag, "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"}};

constexpr SectionKeys kSections[] = {
    {"fp8_config", "fp8_", true, kFp8Keys, kOldFp8Names},      {"deepspeed_config", "", false, kDeepSpeedKeys, {}},
    {"fsdp_config", "fsdp_", false, kFsdpKeys, kOldFsdpNames}, {"parallelism_config", "", true, kParallelismKeys, {}},
    {"megatron_lm_config", "", true, kMegatronKeys, {}},       {"mpirun_config", "", false, kMpirunKeys, {}},
    {"dynamo_config", "dynamo_", true, kDynamoKeys, {}}};

template <typename T>
bool is_number(const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

bool is_choice(const SectionKey& key, const std::string& text) {
  const bool by_number = key.kind == kChoice && key.choices.size() > 2 && is_number<unsigned>(text);
  if (by_number) return std::stoul(text) >= 1 && std::stoul(text) <= key.choices.size();
  return std::any_of(key.choices.begin(), key.choices.end(),
                     [&](const char* choice) { return lower_case(choice) == lower_case(text); });
}

}  // namespace

std::span<const SectionKeys> section_tables() { return kSections; }

const SectionKeys& section_table(const std::string& section) {
  const auto* found = std::find_if(std::begin(kSections), std::end(kSections),
                                   [&](const SectionKeys& keys) { return keys.name == section; });
  ensure(found != std::end(kSections), "no section {}", section);
  return *found;
}

const SectionKey* find_key(const SectionKeys& section, const std::string& name) {
  const std::string prefix = section.prefix;
  auto wanted = prefix.empty() || name.starts_with(prefix.substr(0, prefix.size() - 1)) ? name : prefix + name;
  for (const auto& [old_name, new_name] : section.old_names) {
    if (wanted == old_name) wanted = new_name;
  }
  const auto found =
      std::find_if(section.keys.begin(), section.keys.end(), [&](const SectionKey& key) { return key.name == wanted; });
  return found == section.keys.end() ? nullptr : &*found;
}

std::vector<std::string> key_names(const SectionKeys& section) {
  std::vector<std::string> names;
  for (const auto& key : section.keys) names.emplace_back(key.name);
  return names;
}

std::string expected_of(const SectionKey& key) {
  if (key.choices.size() > 0) return fmt::format("{}", fmt::join(key.choices, ", "));
  switch (key.kind) {
    case kFlag: return "true or false";
    case kInteger: return "an integer";
    case kNumber: return "a number";
    case kNumberOrAuto: return "a number or auto";
    case kFlags: return "three of true and false, as in [true, false, false]";
    default: return "a text";
  }
}

bool fits(const SectionKey& key, const ConfigValue& value) {
  const auto text = python_text(value);
  if (key.kind == kFlags) return three_flags(value).has_value();
  if (std::holds_alternative<std::vector<bool>>(value)) return false;
  if (key.choices.size() > 0) return is_choice(key, text);
  switch (key.kind) {
    case kFlag: return flag_of(text).has_value();
    case kInteger: return is_number<std::int64_t>(text);
    case kNumber: return is_number<double>(text);
    case kNumberOrAuto: return text == "auto" || is_number<double>(text);
    default: return true;
  }
}

std::optional<std::array<bool, 3>> three_flags(const ConfigValue& value) {
  std::vector<bool> flags;
  if (const auto* list = std::get_if<std::vector<bool>>(&value)) flags = *list;
  std::string word;
  bool all_are_flags = true;
  for (const char letter : flags.empty() ? python_text(value) + "," : std::string()) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) word += letter;
    if (letter != ',') continue;
    const auto flag = flag_of(std::exchange(word, ""));
    all_are_flags = all_are_flags && flag.has_value();
    flags.push_back(flag.value_or(false));
  }
  if (!all_are_flags || flags.size() != 3) return std::nullopt;
  return std::array{bool(flags[0]), bool(flags[1]), bool(flags[2])};
}

}  // namespace accel
