#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accel::programs {

/// What a run records about its ranks, for other commands of sim-run.
struct RecordOptions {
  std::string folder = {};  ///< existing; "" to record nothing
  bool tensors = false;     ///< also module outputs, input gradients, and each parameter
  bool values = false;      ///< also the elements of all these and the gradient of each parameter, for `sim-run prove`
  bool audit = false;       ///< also samples, learning rates, gradients, files and lines, for `sim-run check`
  /// Runs on any number of ranks do the same work: RankContext::sample_seed, no dropout, and in Python
  /// backends/python/simranks/same_work.py.
  bool same_work = false;
  std::int64_t seed = 0;                       ///< of generators that the program does not seed, in Python
  std::string disturb = {};                    ///< "nan" or "zero": the loss of the last rank in its second micro-batch
  std::optional<std::int64_t> max_steps = {};  ///< ends a user program after this many micro-batches
  /// A file: instead of all ranks of a user program, only rank 0 runs, for its costs. See rank_costs.hpp.
  std::string costs = {};
};

}  // namespace accel::programs
