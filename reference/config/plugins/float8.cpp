#include "reference/config/plugins/float8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

constexpr CastConfig kAxiswise{.scaling_granularity = ScalingGranularity::kAxiswise};
constexpr CastConfig kAxiswiseE4m3{.scaling_granularity = ScalingGranularity::kAxiswise,
                                   .target_dtype = Float8Type::kE4m3};

bool is_disabled(const CastConfig& cast) { return cast.scaling_type == ScalingType::kDisabled; }

}  // namespace

// Source: torchao/float8/config.py, Float8LinearConfig.from_recipe_name and Float8LinearConfig.__post_init__.
Float8LinearConfig Float8LinearConfig::from_recipe_name(const std::string& name) {
  if (name == "tensorwise") return {};
  if (name == "rowwise") {
    return {.cast_config_input = kAxiswiseE4m3,
            .cast_config_weight = kAxiswiseE4m3,
            .cast_config_grad_output = kAxiswiseE4m3,
            .round_scales_to_power_of_2 = true};
  }
  check_config(name == "rowwise_with_gw_hp",
               "float8 recipe: expected tensorwise, rowwise or rowwise_with_gw_hp, got '{}'", name);
  return {.cast_config_input = kAxiswise,
          .cast_config_weight = kAxiswise,
          .cast_config_grad_output = kAxiswiseE4m3,
          .cast_config_input_for_grad_weight = CastConfig{.scaling_type = ScalingType::kDisabled},
          .cast_config_weight_for_grad_input = CastConfig{},
          .cast_config_grad_output_for_grad_weight =
              CastConfig{.scaling_type = ScalingType::kDisabled, .target_dtype = Float8Type::kE4m3},
          .round_scales_to_power_of_2 = true};
}

// Missing casts of the second product default to those of the first, so the checks see complete pairs.
std::vector<std::string> problems_of(const Float8LinearConfig& config) {
  std::vector<std::string> problems;
  const auto check = [&](bool holds, const char* problem) {
    if (!holds) problems.push_back(fmt::format("ao_recipe_kwargs: config: {}", problem));
  };
  // Each tensor is an operand of two of the three products: output, grad_input and grad_weight.
  struct Use {
    const char* name;
    CastConfig first, second;
    Float8Type fallback;
  };
  const Use input{"input", config.cast_config_input,
                  config.cast_config_input_for_grad_weight.value_or(config.cast_config_input), Float8Type::kE4m3};
  const Use weight{"weight", config.cast_config_weight,
                   config.cast_config_weight_for_grad_input.value_or(config.cast_config_weight), Float8Type::kE4m3};
  const Use grad_output{"grad_output", config.cast_config_grad_output,
                        config.cast_config_grad_output_for_grad_weight.value_or(config.cast_config_grad_output),
                        Float8Type::kE5m2};
  check(is_disabled(input.first) == is_disabled(weight.first),
        "output: expected that both input and weight are scaled, or neither; give both or none the scaling_type "
        "disabled");
  check(is_disabled(grad_output.first) == is_disabled(weight.second),
        "grad_input: expected that both grad_output and weight are scaled, or neither; give both or none the "
        "scaling_type disabled");
  check(is_disabled(input.second) == is_disabled(grad_output.second),
        "grad_weight: expected that both input and grad_output are scaled, or neither; give both or none the "
        "scaling_type disabled");
  // As in torchao, both casts of a tensor use the same dtype, and a disabled cast must not request axiswise
  // scaling.
  for (const auto& use : {input, weight, grad_output}) {
    const auto is_same_dtype =
        use.first.target_dtype.value_or(use.fallback) == use.second.target_dtype.value_or(use.fallback);
    check(is_same_dtype, fmt::format("{}: expected the same target_dtype in both of its products", use.name).c_str());
    for (const auto& cast : {use.first, use.second}) {
      check(
          !is_disabled(cast) || cast.scaling_granularity == ScalingGranularity::kTensorwise,
          fmt::format(
              "{}: axiswise scaling requires dynamic scaling, but scaling is disabled; set scaling_type to dynamic or "
              "scaling_granularity to tensorwise",
              use.name)
              .c_str());
    }
  }
  check(!config.enable_fsdp_float8_all_gather,
        "enable_fsdp_float8_all_gather: unsupported, because a sharded model's weights are gathered in bfloat16; set "
        "it to false");
  return problems;
}

// Source: accelerate/utils/dataclasses.py, AORecipeKwargs.__post_init__.
AORecipeKwargs resolved(AORecipeKwargs kwargs, std::vector<std::string>& problems) {
  const auto note = [&](auto&& read) {
    try {
      read();
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  };
  note([&] {
    const auto backend = upper_case(environment("ACCELERATE_FP8_BACKEND").value_or("AO"));
    check_config(backend == "AO" || backend == "NO",
                 "ACCELERATE_FP8_BACKEND: '{}' is a Python package; expected AO, the built-in implementation", backend);
  });
  if (!kwargs.config) {
    kwargs.config.emplace();
    note([&] {
      kwargs.config->pad_inner_dim = kwargs.pad_inner_dim
                                         ? *kwargs.pad_inner_dim
                                         : environment_flag("ACCELERATE_FP8_PAD_INNER_DIM").value_or(true);
    });
    kwargs.config->enable_fsdp_float8_all_gather = kwargs.enable_fsdp_float8_all_gather.value_or(false);
  }
  auto more = problems_of(*kwargs.config);
  problems.insert(problems.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
  return kwargs;
}

}  // namespace accel
