#include "reference/config/parallelism_environment.hpp"

#include <limits>

#include "reference/config/environment.hpp"
#include "reference/config/plugin_fields.hpp"

namespace accel {

std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems) {
  if (!environment_flag("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false)) return std::nullopt;
  PluginFields fields("parallelism_config", problems);
  const auto size = [&](const char* name, const char* variable) {
    return static_cast<int>(
        fields.integer(fields.find(name, std::optional<int>(), variable), 1, std::numeric_limits<int>::max())
            .value_or(1));
  };
  return ParallelismConfig{.dp_replicate_size = size("dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"),
                           .dp_shard_size = size("dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE"),
                           .cp_size = size("cp_size", "PARALLELISM_CONFIG_CP_SIZE"),
                           .sp_size = size("sp_size", "PARALLELISM_CONFIG_SP_SIZE"),
                           .tp_size = size("tp_size", "PARALLELISM_CONFIG_TP_SIZE")};
}

}  // namespace accel
