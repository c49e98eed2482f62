#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// How parameters, gradients and optimizer state are divided over ranks: Accelerate's plugins, and what they mean
/// together.
///
///     accel::FullyShardedDataParallelPlugin plugin;
///     plugin.auto_wrap_policy = "TRANSFORMER_BASED_WRAP";
///     plugin.transformer_cls_names_to_wrap = {"Block"};
///     accel::Accelerator accelerator({.fsdp_plugin = plugin});
///
/// A field without a value takes the environment's, else Accelerate's default. Thread rule: values.
/// Source: accelerate/utils/dataclasses.py.
namespace accel {

// Names that plugins, configuration files and the questions of `accel config` share. Their order counts: a number from
// 1 means the name at that place. Source: accelerate/utils/constants.py.

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
/// What a mixed precision casts to around layers in float8: "fp16", "bf16" or "no".
inline std::string precision_of_casts(const std::string& mixed_precision) {
  return mixed_precision == "fp8" ? "bf16" : mixed_precision;
}

/// Dtypes by name: "fp32", "fp16" or "bf16", also as "float32", "float16", "bfloat16", with "torch." before them or
/// not.
struct MixedPrecisionPolicy {
  std::optional<std::string> param_dtype = {};   ///< of parameters while a unit computes
  std::optional<std::string> reduce_dtype = {};  ///< of gradients while they are summed; default: param_dtype
  std::optional<std::string> buffer_dtype = {};
};

struct FullyShardedDataParallelPlugin {
  std::optional<int> fsdp_version = {};  ///< 1 or 2: whose names the other fields are; FSDP_VERSION, else 1
  /// FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or 1 to 5; FSDP_SHARDING_STRATEGY, else
  /// FULL_SHARD.
  std::optional<std::string> sharding_strategy = {};
  /// Version 2: "true" (as FULL_SHARD) or "false" (as SHARD_GRAD_OP); version 1: a strategy.
  /// FSDP_RESHARD_AFTER_FORWARD.
  std::optional<std::string> reshard_after_forward = {};
  std::optional<std::string> backward_prefetch =
      {};  ///< BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH; FSDP_BACKWARD_PREFETCH
  std::optional<MixedPrecisionPolicy> mixed_precision_policy = {};  ///< default: by the accelerator's mixed_precision
  /// TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP; FSDP_AUTO_WRAP_POLICY, else NO_WRAP.
  std::optional<std::string> auto_wrap_policy = {};
  std::vector<std::string> transformer_cls_names_to_wrap =
      {};  ///< classes, "Block" for BlockImpl too; FSDP_TRANSFORMER_CLS_TO_WRAP
  std::optional<std::int64_t> min_num_params = {};  ///< of SIZE_BASED_WRAP; FSDP_MIN_NUM_PARAMS
  std::vector<std::string> wrap_modules =
      {};  ///< by hand: regular expressions that match names of modules, such as "blocks\\.[0-9]+"
  std::vector<std::string> ignored_modules =
      {};  ///< regular expressions: these modules' parameters stay as they are; FSDP_IGNORED_MODULES
  std::optional<bool> cpu_offload = {};  ///< FSDP_OFFLOAD_PARAMS
  std::optional<std::string> state_dict_type =
      {};                         ///< FULL_STATE_DICT, SHARDED_STATE_DICT or LOCAL_STATE_DICT; FSDP_STATE_DICT_TYPE
  bool limit_all_gathers = true;  ///< at most one unit is gathered ahead of use, always
  std::optional<bool> use_orig_params =
      {};  ///< parameters are the module's own here either way; it decides how they lie in shards; FSDP_USE_ORIG_PARAMS
  std::optional<bool> sync_module_states =
      {};  ///< rank 0's parameters and buffers to all, at prepare; FSDP_SYNC_MODULE_STATES
  std::optional<bool> forward_prefetch = {};           ///< FSDP_FORWARD_PREFETCH
  std::optional<bool> activation_checkpointing = {};   ///< FSDP_ACTIVATION_CHECKPOINTING
  std::optional<bool> cpu_ram_efficient_loading = {};  ///< implies sync_module_states; FSDP_CPU_RAM_EFFICIENT_LOADING
};

/// DeepSpeed's ZeRO by this library's own engine: its stages and stepping rules, not its code.
struct DeepSpeedPlugin {
  std::optional<std::string> hf_ds_config = {};  ///< path of a DeepSpeed JSON file; ACCELERATE_DEEPSPEED_CONFIG_FILE
  std::optional<std::string> gradient_accumulation_steps =
      {};  ///< a number or "auto"; ACCELERATE_GRADIENT_ACCUMULATION_STEPS, else "auto"
  std::optional<std::string> gradient_clipping = {};  ///< a number or "auto"; ACCELERATE_GRADIENT_CLIPPING, else "auto"
  std::optional<int> zero_stage = {};                 ///< 0 to 3; ACCELERATE_DEEPSPEED_ZERO_STAGE, else 2
  std::optional<std::string> offload_optimizer_device =
      {};  ///< none, cpu or nvme; ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
  std::optional<std::string> offload_param_device = {};  ///< of stage 3; ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE
  std::optional<std::string> offload_optimizer_nvme_path = {};  ///< ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
  std::optional<std::string> offload_param_nvme_path = {};      ///< ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
  std::optional<bool> zero3_init_flag = {};                     ///< accepted; ACCELERATE_DEEPSPEED_ZERO3_INIT
  std::optional<bool> zero3_save_16bit_model = {};              ///< ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
};

enum class Prefetch { kNone, kBackwardPre, kBackwardPost };
enum class FloatType { kFloat32, kFloat16, kBFloat16 };
enum class OffloadDevice { kNone, kCpu, kFiles };

/// Which modules are units: gathered and reduced as one. The whole model is always one, for what no other unit holds.
struct WrapPolicy {
  enum class Kind { kNone, kByClass, kBySize } kind = Kind::kNone;
  std::vector<std::string> classes = {};
  std::int64_t min_num_params = 0;
  std::vector<std::string> modules = {};  ///< by hand, beside what the kind says
  std::vector<std::string> ignored = {};
};

/// What a plugin comes to: the one description that the engine reads.
struct ShardingOptions {
  bool parameters = true;             ///< sharded when no unit computes: freed after use
  bool reshard_after_forward = true;  ///< freed between forward and backward too, but for the root's
  bool gradients = true;              ///< reduced to shards by every backward; else once, before the optimizer steps
  bool reduces_always = false;        ///< also while gradients accumulate: no_sync has no effect
  bool hybrid = false;                ///< sharded over the ranks of a machine, replicated over machines
  Prefetch prefetch = Prefetch::kNone;
  bool forward_prefetch = false;
  std::optional<FloatType> param_dtype = {}, reduce_dtype = {}, buffer_dtype = {};
  bool autocasts =
      true;  ///< FSDP1 runs forward under autocast too, and gives outputs in float32; FSDP2 and DeepSpeed do neither
  /// Either keeps the shards on the host, where the optimizer steps them; units are gathered from there.
  OffloadDevice offload_parameters = OffloadDevice::kNone, offload_optimizer = OffloadDevice::kNone;
  std::string offload_parameters_path = {}, offload_optimizer_path = {};  ///< folders, of kFiles
  bool aligned = false;  ///< parameters begin at multiples of 16 bytes: the layout of use_orig_params
  bool sync_module_states = false;
  bool activation_checkpointing = false;
  WrapPolicy wrap = {};
  std::string state_dict_type = "FULL_STATE_DICT";
};

/// What is wrong with options of a plugin or of its environment, added to `problems`; and what they come to, where
/// nothing is. Nothing also for NO_SHARD and ZeRO stage 0: the model is trained by DDP. `mixed_precision`: the
/// accelerator's.
struct ResolvedPlugin {
  std::optional<ShardingOptions> sharding = {};
  std::optional<int> gradient_accumulation_steps = {};  ///< a DeepSpeed plugin's own, unless it is "auto"
  /// The norm that gradients are clipped to; none: they are not. "auto" is 1.0, as in Accelerate, where no file says
  /// otherwise.
  std::optional<double> gradient_clipping = {};
  bool saves_16bit_model = false;  ///< DeepSpeed's stage 3: whole weights have the dtype of mixed_precision
  bool steps_in_backward = false;  ///< DeepSpeed's rule: backward steps the optimizer, whose own step does nothing
};
ResolvedPlugin resolve(const FullyShardedDataParallelPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems);
ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems);

}  // namespace accel
