#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class LinearImpl;
}

namespace accel {

/// How Linear layers compute in float8 while they train: each operand of their three products is scaled into float8's
/// range, by what it holds at that moment, and multiplied there. Names, defaults and recipes are torchao's. Source:
/// torchao 0.18, float8/config.py.
enum class Float8Type {
  kE4m3,  ///< float8_e4m3fn, up to 448
  kE5m2   ///< float8_e5m2, up to 57,344
};
enum class ScalingType { kDynamic, kDisabled };  ///< disabled: the operand stays in its own precision
enum class ScalingGranularity {
  kTensorwise,  ///< one scale for the whole operand
  kAxiswise     ///< one for each row of a product's left operand, and each column of its right one
};

struct CastConfig {
  ScalingType scaling_type = ScalingType::kDynamic;
  ScalingGranularity scaling_granularity = ScalingGranularity::kTensorwise;
  std::optional<Float8Type> target_dtype = {};  ///< default: e4m3, of output gradients e5m2

  friend bool operator==(const CastConfig&, const CastConfig&) = default;
};

struct Float8GemmConfig {
  bool use_fast_accum = false;  ///< on GPUs: sums of less precision, faster
};

struct Float8LinearConfig {
  CastConfig cast_config_input = {}, cast_config_weight = {}, cast_config_grad_output = {};
  /// The same tensors in their second product; default: as in the first.
  std::optional<CastConfig> cast_config_input_for_grad_weight = {}, cast_config_weight_for_grad_input = {},
                            cast_config_grad_output_for_grad_weight = {};
  Float8GemmConfig gemm_config_output = {.use_fast_accum = true}, gemm_config_grad_input = {},
                   gemm_config_grad_weight = {};
  /// Gathers a sharded model's weights in float8: not built, an error.
  bool enable_fsdp_float8_all_gather = false;
  bool pad_inner_dim = false;  ///< with zeros, to a multiple of 16, which products in float8 need
  bool emulate = false;        ///< products of float8 values in float32, for devices that have none in float8
  bool round_scales_to_power_of_2 = false;  ///< downwards

  /// "tensorwise" (the default), "rowwise" or "rowwise_with_gw_hp" (gradients of weights stay in high precision).
  /// Throws ConfigError.
  static Float8LinearConfig from_recipe_name(const std::string& name);
};
std::vector<std::string> problems_of(const Float8LinearConfig& config);

/// Of mixed_precision "fp8". Source: accelerate/utils/dataclasses.py, AORecipeKwargs.
struct AORecipeKwargs {
  /// Default: of tensorwise scales, with the two fields below.
  std::optional<Float8LinearConfig> config = {};
  /// Whether a Linear layer of that name computes in float8; default: all whose features are multiples of 16, but the
  /// first and the last.
  std::function<bool(const torch::nn::LinearImpl& layer, const std::string& name)> module_filter_func = {};
  /// Of the default config: ACCELERATE_FP8_PAD_INNER_DIM, else true.
  std::optional<bool> pad_inner_dim = {};
  /// Of the default config. Accelerate's default is true, and weights of a model that is not sharded by FSDP2 then
  /// never change; here it is false, true is an error, and ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER, which
  /// launchers set, is not read.
  std::optional<bool> enable_fsdp_float8_all_gather = {};
};

/// With its config in place. Adds to `problems` what is wrong with it, or with the environment.
AORecipeKwargs resolved(AORecipeKwargs kwargs, std::vector<std::string>& problems);

}  // namespace accel
