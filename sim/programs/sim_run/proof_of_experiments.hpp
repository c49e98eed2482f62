#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/programs/sim_run/commands.hpp"

namespace accel::programs {

/// See ExperimentFiles::overrides_of_proof.
std::vector<std::string> overrides_of_proof(const std::string& file, const std::vector<std::string>& overrides,
                                            int num_ranks, std::int64_t max_steps);

/// See ExperimentFiles::compare_with.
LayoutComparer compare_with(const std::string& one);

}  // namespace accel::programs
