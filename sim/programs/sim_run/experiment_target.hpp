#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/programs/sim_run/explore_target.hpp"

namespace accel::programs {

/// Explores an experiment in this process. Trials are compared by the traces of all ranks.
std::unique_ptr<ExploreTarget> make_experiment_target(std::string file, std::vector<std::string> overrides,
                                                      std::string faults_file);

}  // namespace accel::programs
