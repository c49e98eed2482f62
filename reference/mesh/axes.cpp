#include "reference/mesh/axes.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel {

// The order is that of Accelerate. Source: accelerate/parallelism_config.py.
const std::array<MeshAxisDescription, kNumMeshAxes>& mesh_axes() {
  using Config = ParallelismConfig;
  using enum AxisWeights;
  static constexpr std::array<MeshAxisDescription, kNumMeshAxes> kAxes{{
      // name, size_name, variable, size, shares_batch, weights, joins_shards, is_addition
      {"dp_replicate", "dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", &Config::dp_replicate_size, false,
       kEqual, false},
      {"dp_shard", "dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", &Config::dp_shard_size, false, kEqual, true},
      {"cp", "cp_size", "PARALLELISM_CONFIG_CP_SIZE", &Config::cp_size, true, kEqual, true},
      {"sp", "sp_size", "PARALLELISM_CONFIG_SP_SIZE", &Config::sp_size, true, kEqual, true},
      {"tp", "tp_size", "PARALLELISM_CONFIG_TP_SIZE", &Config::tp_size, true, kFeatures, false},
      {"pp", "pp_size", "PARALLELISM_CONFIG_PP_SIZE", &Config::pp_size, true, kStages, false, true},
      {"ep", "ep_size", "PARALLELISM_CONFIG_EP_SIZE", &Config::ep_size, false, kExperts, false, true},
  }};
  return kAxes;
}

MeshAxis axis_named(std::string_view name) {
  const auto& axes = mesh_axes();
  const auto axis = std::ranges::find(axes, name, &MeshAxisDescription::name);
  std::vector<std::string_view> names;
  for (const auto& known : axes) names.push_back(known.name);
  check_argument(axis != axes.end(), "the mesh has no axis '{}'; expected one of: {}", name, fmt::join(names, ", "));
  return static_cast<MeshAxis>(axis - axes.begin());
}

std::int64_t ParallelismConfig::data_parallel_size() const {
  std::int64_t product = 1;
  for (const auto& axis : mesh_axes()) {
    if (!axis.shares_batch) product *= this->*axis.size;
  }
  return product;
}

std::int64_t ParallelismConfig::non_data_parallel_size() const {
  std::int64_t product = 1;
  for (const auto& axis : mesh_axes()) {
    if (axis.shares_batch) product *= this->*axis.size;
  }
  return product;
}

}  // namespace accel
