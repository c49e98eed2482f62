#include "sim/programs/sim_run/mesh_environment.hpp"

#include <fmt/format.h>

namespace accel::programs {

std::vector<std::string> environment_of(const ParallelismConfig& layout) {
  std::vector<std::string> variables{"ACCELERATE_SPLIT_BATCHES=true", "ACCELERATE_USE_PARALLELISM_CONFIG=true"};
  for (const auto& axis : mesh_axes()) variables.push_back(fmt::format("{}={}", axis.variable, layout.*axis.size));
  return variables;
}

}  // namespace accel::programs
