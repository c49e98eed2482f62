#include "reference/config/parallelism_environment.hpp"

#include "reference/config/accelerator_fields.hpp"
#include "reference/config/environment.hpp"
#include "reference/config/plugin_reader.hpp"

namespace accel {

std::optional<ParallelismConfig> parallelism_config_of_environment(std::vector<std::string>& problems) {
  if (!environment_flag("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false)) return std::nullopt;
  ParallelismConfig config;
  PluginReader("parallelism_config", config, problems).read(config);
  return config;
}

}  // namespace accel
