#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/field.hpp"

/// Sharding of parameters, gradients and optimizer state: Accelerate's plugins, and the options that they resolve to.
///
///     accel::FullyShardedDataParallelPlugin plugin;
///     plugin.auto_wrap_policy = "TRANSFORMER_BASED_WRAP";
///     plugin.transformer_cls_names_to_wrap = {"Block"};
///     accel::Accelerator accelerator({.fsdp_plugin = plugin});
///
/// A field without a value defaults to its environment variable or to Accelerate's default. Thread rule: values.
/// Source: accelerate/utils/dataclasses.py.
namespace accel {

// Names used by plugins, configuration files and the questions of `accel config`. The order is significant: a number
// selects the name at that position, from 1. Source: accelerate/utils/constants.py.

inline constexpr std::initializer_list<const char*> kShardingStrategies = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                                                           "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
inline constexpr std::initializer_list<const char*> kWrapPolicies = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP",
                                                                     "NO_WRAP"};
inline constexpr std::initializer_list<const char*> kBackwardPrefetches = {"BACKWARD_PRE", "BACKWARD_POST",
                                                                           "NO_PREFETCH"};
inline constexpr std::initializer_list<const char*> kStateDictTypes = {"FULL_STATE_DICT", "LOCAL_STATE_DICT",
                                                                       "SHARDED_STATE_DICT"};
inline constexpr std::initializer_list<const char*> kOffloadDevices = {"none", "cpu", "nvme"};
inline constexpr std::initializer_list<const char*> kMixedPrecisions = {"no", "fp16", "bf16", "fp8"};
inline bool is_mixed_precision(const std::string& name) {
  return std::find(kMixedPrecisions.begin(), kMixedPrecisions.end(), name) != kMixedPrecisions.end();
}
/// Returns the precision of casts for a mixed precision: "fp16", "bf16" (also for "fp8") or "no".
inline std::string cast_precision(const std::string& mixed_precision) {
  return mixed_precision == "fp8" ? "bf16" : mixed_precision;
}

/// Names of dtypes: "fp32", "fp16", "bf16", "float32", "float16" or "bfloat16", with or without the prefix "torch.".
struct MixedPrecisionPolicy {
  std::optional<std::string> param_dtype = {};   ///< dtype of parameters while a unit computes
  std::optional<std::string> reduce_dtype = {};  ///< dtype in which gradients are summed; default: param_dtype
  std::optional<std::string> buffer_dtype = {};
};

struct FullyShardedDataParallelPlugin {
  std::optional<int> fsdp_version = {};  ///< 1 or 2, whose names the other fields have; default: FSDP_VERSION or 1
  /// FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or 1 to 5. Default:
  /// FSDP_SHARDING_STRATEGY or FULL_SHARD.
  std::optional<std::string> sharding_strategy = {};
  /// Version 2: "true" (as FULL_SHARD) or "false" (as SHARD_GRAD_OP); version 1: a strategy.
  /// FSDP_RESHARD_AFTER_FORWARD.
  std::optional<std::string> reshard_after_forward = {};
  /// BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH. Default: FSDP_BACKWARD_PREFETCH; if that is unset or NO_PREFETCH,
  /// BACKWARD_PRE on GPUs and NO_PREFETCH on CPUs.
  std::optional<std::string> backward_prefetch = {};
  std::optional<MixedPrecisionPolicy> mixed_precision_policy = {};  ///< default: that of the mixed_precision option
  /// TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP. Default: FSDP_AUTO_WRAP_POLICY or NO_WRAP.
  std::optional<std::string> auto_wrap_policy = {};
  /// Names of classes; "Block" also matches BlockImpl. Default: FSDP_TRANSFORMER_CLS_TO_WRAP.
  std::vector<std::string> transformer_cls_names_to_wrap = {};
  std::optional<std::int64_t> min_num_params = {};  ///< for SIZE_BASED_WRAP; default: FSDP_MIN_NUM_PARAMS
  /// Explicit units: regular expressions that match names of modules, such as "blocks\\.[0-9]+".
  std::vector<std::string> wrap_modules = {};
  /// Regular expressions for modules whose parameters are not sharded. Default: FSDP_IGNORED_MODULES.
  std::vector<std::string> ignored_modules = {};
  std::optional<bool> cpu_offload = {};  ///< FSDP_OFFLOAD_PARAMS
  /// FULL_STATE_DICT, SHARDED_STATE_DICT or LOCAL_STATE_DICT. Default: FSDP_STATE_DICT_TYPE.
  std::optional<std::string> state_dict_type = {};
  bool limit_all_gathers = true;  ///< always: at most one unit is gathered ahead of its use; false is a ConfigError
  /// Selects only the layout of shards; parameters are the module's own in either case. Default: FSDP_USE_ORIG_PARAMS.
  std::optional<bool> use_orig_params = {};
  /// Broadcast parameters and buffers of rank 0 in prepare. Default: FSDP_SYNC_MODULE_STATES.
  std::optional<bool> sync_module_states = {};
  std::optional<bool> forward_prefetch = {};           ///< default: true on GPUs, FSDP_FORWARD_PREFETCH on CPUs
  std::optional<bool> activation_checkpointing = {};   ///< FSDP_ACTIVATION_CHECKPOINTING
  std::optional<bool> cpu_ram_efficient_loading = {};  ///< implies sync_module_states; FSDP_CPU_RAM_EFFICIENT_LOADING
};

/// All fields except mixed_precision_policy, which is a struct.
template <FieldsOf<FullyShardedDataParallelPlugin> Plugin, typename Visit>
void for_each_field(Plugin& plugin, Visit&& visit) {
  visit(Field{.name = "fsdp_version",
              .rule = {"1 to 2", [](double version) { return version >= 1 && version <= 2; }},
              .variable = "FSDP_VERSION"},
        plugin.fsdp_version);
  visit(Field{.name = "sharding_strategy",
              .rule = {.choices = kShardingStrategies, .numbered = true},
              .variable = "FSDP_SHARDING_STRATEGY"},
        plugin.sharding_strategy);
  visit(Field{.name = "reshard_after_forward", .variable = "FSDP_RESHARD_AFTER_FORWARD"}, plugin.reshard_after_forward);
  visit(Field{.name = "backward_prefetch",
              .rule = {.choices = kBackwardPrefetches, .numbered = true},
              .variable = "FSDP_BACKWARD_PREFETCH"},
        plugin.backward_prefetch);
  visit(Field{.name = "auto_wrap_policy", .rule = {.choices = kWrapPolicies}, .variable = "FSDP_AUTO_WRAP_POLICY"},
        plugin.auto_wrap_policy);
  visit(Field{.name = "transformer_cls_names_to_wrap", .variable = "FSDP_TRANSFORMER_CLS_TO_WRAP"},
        plugin.transformer_cls_names_to_wrap);
  visit(Field{.name = "min_num_params",
              .rule = {"an integer from 0 to 9223372036854775807", at_least_zero.accepts},
              .variable = "FSDP_MIN_NUM_PARAMS"},
        plugin.min_num_params);
  visit(Field{.name = "wrap_modules"}, plugin.wrap_modules);
  visit(Field{.name = "ignored_modules", .variable = "FSDP_IGNORED_MODULES"}, plugin.ignored_modules);
  visit(Field{.name = "cpu_offload", .variable = "FSDP_OFFLOAD_PARAMS"}, plugin.cpu_offload);
  visit(Field{.name = "state_dict_type",
              .rule = {.choices = kStateDictTypes, .numbered = true},
              .variable = "FSDP_STATE_DICT_TYPE"},
        plugin.state_dict_type);
  visit(Field{.name = "limit_all_gathers"}, plugin.limit_all_gathers);
  visit(Field{.name = "use_orig_params", .variable = "FSDP_USE_ORIG_PARAMS"}, plugin.use_orig_params);
  visit(Field{.name = "sync_module_states", .variable = "FSDP_SYNC_MODULE_STATES"}, plugin.sync_module_states);
  visit(Field{.name = "forward_prefetch", .variable = "FSDP_FORWARD_PREFETCH"}, plugin.forward_prefetch);
  visit(Field{.name = "activation_checkpointing", .variable = "FSDP_ACTIVATION_CHECKPOINTING"},
        plugin.activation_checkpointing);
  visit(Field{.name = "cpu_ram_efficient_loading", .variable = "FSDP_CPU_RAM_EFFICIENT_LOADING"},
        plugin.cpu_ram_efficient_loading);
}

/// DeepSpeed's ZeRO, implemented by this library's engine with the same stages and stepping rules.
struct DeepSpeedPlugin {
  std::optional<std::string> hf_ds_config = {};  ///< path of a DeepSpeed JSON file; ACCELERATE_DEEPSPEED_CONFIG_FILE
  /// A number or "auto". Default: ACCELERATE_GRADIENT_ACCUMULATION_STEPS or "auto".
  std::optional<std::string> gradient_accumulation_steps = {};
  /// A number or "auto". Default: ACCELERATE_GRADIENT_CLIPPING or "auto".
  std::optional<std::string> gradient_clipping = {};
  std::optional<int> zero_stage = {};  ///< 0 to 3; default: ACCELERATE_DEEPSPEED_ZERO_STAGE or 2
  /// none, cpu or nvme. Default: ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE.
  std::optional<std::string> offload_optimizer_device = {};
  std::optional<std::string> offload_param_device = {};  ///< for stage 3; ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE
  std::optional<std::string> offload_optimizer_nvme_path = {};  ///< ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
  std::optional<std::string> offload_param_nvme_path = {};      ///< ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
  /// Warns, since models are created whole before prepare shards them. ACCELERATE_DEEPSPEED_ZERO3_INIT.
  std::optional<bool> zero3_init_flag = {};
  std::optional<bool> zero3_save_16bit_model = {};  ///< ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
  /// Stage 3 gathers the elements of Sequential, ModuleList and ModuleDict one at a time, which custom modules call
  /// through accel::call. An element with fewer parameters is gathered with the module around it. Default: 100,000.
  std::optional<std::int64_t> stage3_param_persistence_threshold = {};
  /// Stage 3: modules with more parameters are not gathered before their turn. Default: 50,000,000.
  std::optional<std::int64_t> stage3_prefetch_bucket_size = {};
  /// Stage 3: no module is gathered before its turn if more parameters than these could then be full. Default: 10^9.
  std::optional<std::int64_t> stage3_max_live_parameters = {};
  /// Stage 3: classes of layers with experts, "Block,Head", which are gathered as a whole.
  /// ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES.
  std::optional<std::string> transformer_moe_cls_names = {};
  /// Stage 3: further modules that are gathered one at a time: regular expressions that match their names.
  std::vector<std::string> wrap_modules = {};
};

enum class Prefetch { kNone, kBackwardPre, kBackwardPost };
enum class FloatType { kFloat32, kFloat16, kBFloat16 };
enum class OffloadDevice { kNone, kCpu, kFiles };

/// Which modules are units, which are gathered and reduced as one. The model itself is always a unit, for parameters
/// that no other unit contains.
struct WrapPolicy {
  /// kElements: elements of modules that call their children (see calls_its_children), of min_num_params or more.
  enum class Kind { kNone, kByClass, kBySize, kElements } kind = Kind::kNone;
  std::vector<std::string> classes = {};
  std::int64_t min_num_params = 0;
  std::vector<std::string> modules = {};  ///< explicit units in addition to those of `kind`
  std::vector<std::string> leaves = {};   ///< kElements: classes inside of which there are no units
  std::vector<std::string> ignored = {};
};

/// The resolved options of a plugin: the only description that the engine uses.
struct ShardingOptions {
  bool parameters = true;             ///< parameters are sharded, and complete ones are freed after use
  bool reshard_after_forward = true;  ///< also freed between forward and backward, except those of the root
  bool gradients = true;              ///< reduced to shards in every backward; else once, before the optimizer steps
  bool reduces_always = false;        ///< also during accumulation: no_sync has no effect
  bool hybrid = false;                ///< sharded over the ranks of a machine, replicated over machines
  bool is_stage = false;              ///< modules that the wrap policy names may be on other ranks of a pipeline
  /// When backward gathers the next unit, and whether forward does so early. Unset: see `with_defaults`.
  std::optional<Prefetch> prefetch = {};
  std::optional<bool> forward_prefetch = {};
  /// Units with more elements are not gathered ahead, nor is any if more elements could then be full.
  std::int64_t max_prefetched_numel = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_live_numel = std::numeric_limits<std::int64_t>::max();
  std::optional<FloatType> param_dtype = {}, reduce_dtype = {}, buffer_dtype = {};
  /// Runs forward under autocast and returns outputs in float32, as FSDP1 does. FSDP2 and DeepSpeed do neither.
  bool autocasts = true;
  /// Either one keeps the shards on the host, where the optimizer updates them and units are gathered from.
  OffloadDevice offload_parameters = OffloadDevice::kNone, offload_optimizer = OffloadDevice::kNone;
  std::string offload_parameters_path = {}, offload_optimizer_path = {};  ///< folders for kFiles
  bool aligned = false;  ///< parameters start at multiples of 16 bytes: the layout of use_orig_params
  bool sync_module_states = false;
  bool activation_checkpointing = false;
  WrapPolicy wrap = {};
  std::string state_dict_type = "FULL_STATE_DICT";
};

/// Decides what is unset by where the model computes.
[[nodiscard]] ShardingOptions with_defaults(ShardingOptions options, bool on_device);

/// Result of `resolve`, which appends the problems of a plugin and its environment to `problems`. Without a `sharding`
/// value, the model is trained by DDP: for NO_SHARD, ZeRO stage 0, or if there are problems. `mixed_precision` is the
/// accelerator's.
/// DeepSpeed's equation: train = micro x gradient_accumulation_steps x data-parallel ranks.
struct BatchSizes {
  std::optional<int> train = {};  ///< train_batch_size: samples per optimizer step, over all ranks
  std::optional<int> micro = {};  ///< train_micro_batch_size_per_gpu: samples per rank and backward pass
  bool derives_steps = false;     ///< the file leaves gradient_accumulation_steps open
};
/// Derives the one that is missing. `steps`: gradient_accumulation_steps. Returns a problem, or "".
std::string complete(BatchSizes& sizes, int& steps, int num_data_parallel_ranks);

struct ResolvedPlugin {
  std::optional<ShardingOptions> sharding = {};
  std::optional<int> gradient_accumulation_steps = {};  ///< of a DeepSpeed plugin; nullopt: "auto"
  BatchSizes batch_sizes = {};                          ///< of a DeepSpeed file
  /// Maximum norm of gradients; nullopt: no clipping. "auto" is 1.0, as in Accelerate without a DeepSpeed file.
  std::optional<double> gradient_clipping = {};
  bool saves_16bit_model = false;  ///< DeepSpeed's stage 3: complete weights are saved in the dtype of mixed_precision
  bool steps_in_backward = false;  ///< DeepSpeed: backward steps the optimizer, and its own step does nothing
  std::vector<std::string> warnings = {};  ///< what was set and is ignored
};
ResolvedPlugin resolve(const FullyShardedDataParallelPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems);
ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems);

}  // namespace accel
