#pragma once

#include <string>
#include <vector>

#include "reference/mesh/mesh.hpp"

namespace accel::programs {

/// NAME=VALUE: how a mesh reaches a program's Accelerator, as from `accel launch`. Batches are split, so that the
/// program reads the same samples per step under every mesh.
std::vector<std::string> environment_of(const ParallelismConfig& layout);

}  // namespace accel::programs
