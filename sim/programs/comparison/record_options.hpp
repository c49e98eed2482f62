#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accel::programs {

/// What a run records about its ranks, for `sim-run compare`.
struct RecordOptions {
  std::string folder = {};  ///< existing; "" to record nothing
  bool tensors = false;     ///< also module outputs, input gradients, and each parameter
  bool values = false;      ///< also the elements of all these and the gradient of each parameter, for `sim-run prove`
  std::optional<std::int64_t> max_steps = {};  ///< ends a user program after this many micro-batches
};

}  // namespace accel::programs
