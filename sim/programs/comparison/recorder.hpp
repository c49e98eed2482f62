#pragma once

#include "reference/state/rank_context.hpp"
#include "sim/programs/comparison/record_options.hpp"

namespace accel::programs {

/// Thrown by `accelerator.backward` after max_steps micro-batches. No std::exception: programs report those.
struct EnoughRecorded {};

/// Records the rank's training from here on in a file of the folder: see recording.hpp. Works on any backend. A module
/// inside the model is observed if it is an element of a Sequential or is called through `accel::call`.
/// Throws ConfigError if the file cannot be written.
void record_rank(RankContext& context, const RecordOptions& options);

}  // namespace accel::programs
