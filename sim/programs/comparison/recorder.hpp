#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reference/state/rank_context.hpp"

namespace accel::programs {

/// What a run records about its ranks, for `sim-run compare`.
struct RecordOptions {
  std::string folder = {};  ///< existing; "" to record nothing
  bool tensors = false;     ///< also module outputs, input gradients, and each parameter
  bool values = false;      ///< also the elements of all these and the gradient of each parameter, for `sim-run prove`
  std::optional<std::int64_t> max_steps = {};  ///< ends a user program after this many micro-batches
};

/// Thrown by `accelerator.backward` after max_steps micro-batches. No std::exception: programs report those.
struct EnoughRecorded {};

/// Records the rank's training from here on in a file of the folder: see recording.hpp. Works on any backend. A module
/// inside the model is observed if it is an element of a Sequential or is called through `accel::call`.
/// Throws ConfigError if the file cannot be written.
void record_rank(RankContext& context, const RecordOptions& options);

}  // namespace accel::programs
