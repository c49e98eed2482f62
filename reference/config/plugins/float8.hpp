#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class LinearImpl;
}

namespace accel {

/// Float8 training of Linear layers: each operand of their three products is scaled dynamically into the range of
/// float8 and multiplied in float8. Names, defaults and recipes are torchao's. Source: torchao 0.18, float8/config.py.
enum class Float8Type {
  kE4m3,  ///< float8_e4m3fn, up to 448
  kE5m2   ///< float8_e5m2, up to 57,344
};
enum class ScalingType { kDynamic, kDisabled };  ///< kDisabled: the operand keeps its precision
enum class ScalingGranularity {
  kTensorwise,  ///< one scale per operand
  kAxiswise     ///< one scale per row of a product's left operand and per column of its right operand
};

struct CastConfig {
  ScalingType scaling_type = ScalingType::kDynamic;
  ScalingGranularity scaling_granularity = ScalingGranularity::kTensorwise;
  std::optional<Float8Type> target_dtype = {};  ///< default: e4m3, and e5m2 for output gradients

  friend bool operator==(const CastConfig&, const CastConfig&) = default;
};

struct Float8GemmConfig {
  bool use_fast_accum = false;  ///< on GPUs: faster sums with less precision
};

struct Float8LinearConfig {
  CastConfig cast_config_input = {}, cast_config_weight = {}, cast_config_grad_output = {};
  /// The same tensors in their second product; default: as in the first one.
  std::optional<CastConfig> cast_config_input_for_grad_weight = {}, cast_config_weight_for_grad_input = {},
                            cast_config_grad_output_for_grad_weight = {};
  Float8GemmConfig gemm_config_output = {.use_fast_accum = true}, gemm_config_grad_input = {},
                   gemm_config_grad_weight = {};
  /// Gathers the weights of a sharded model in float8. Unsupported: true is an error.
  bool enable_fsdp_float8_all_gather = false;
  bool pad_inner_dim = false;  ///< pads with zeros to a multiple of 16, as float8 products require
  bool emulate = false;        ///< multiplies float8 values in float32, for devices without float8 products
  bool round_scales_to_power_of_2 = false;  ///< rounds down

  /// Recipes: "tensorwise" (the default), "rowwise" and "rowwise_with_gw_hp" (weight gradients stay in high precision).
  /// Throws ConfigError for other names.
  static Float8LinearConfig from_recipe_name(const std::string& name);
};
std::vector<std::string> problems_of(const Float8LinearConfig& config);

/// Options of mixed_precision "fp8". Source: accelerate/utils/dataclasses.py, AORecipeKwargs.
struct AORecipeKwargs {
  /// Default: tensorwise scales, with the two fields below.
  std::optional<Float8LinearConfig> config = {};
  /// Returns whether a Linear layer computes in float8. Default: layers whose features are multiples of 16, except the
  /// first and the last layer.
  std::function<bool(const torch::nn::LinearImpl& layer, const std::string& name)> module_filter_func = {};
  /// For the default config. Default: ACCELERATE_FP8_PAD_INNER_DIM or true.
  std::optional<bool> pad_inner_dim = {};
  /// For the default config. Accelerate's default is true, with which the weights of a model that is not sharded by
  /// FSDP2 never change. Here the default is false, true is an error, and ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER,
  /// which launchers set, is ignored.
  std::optional<bool> enable_fsdp_float8_all_gather = {};
};

/// Returns `kwargs` with `config` set. Appends problems of the config or the environment to `problems`.
AORecipeKwargs resolved(AORecipeKwargs kwargs, std::vector<std::string>& problems);

}  // namespace accel
