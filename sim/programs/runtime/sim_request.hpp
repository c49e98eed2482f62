#pragma once

#include <optional>
#include <string>

#include "sim/programs/runtime/rehearsal_options.hpp"

namespace accel::programs {

inline constexpr const char* kSimRequestVariable = "ACCEL_SIM";
inline constexpr const char* kBackends[] = {"sim", "gloo", "nccl"};

/// What sim-run asks of a program of the user's own: one JSON object in the environment variable ACCEL_SIM. It may be
/// set by hand too, e.g. to have the ranks in a debugger:
///
///     ACCEL_SIM='{"ranks":8}' gdb ./train
struct SimRequest {
  int ranks = 1;  ///< required
  std::string backend = "sim";
  RehearsalOptions rehearsal;  ///< each a key of its own, spelled as the option with "_" for "-"
  std::string sweep;           ///< a file of the points of a sweep so far, one JSON object a line; this run's is added
  std::optional<int> acknowledge;  ///< the descriptor of a pipe on which somebody waits for `acknowledge`
};

std::string to_json(const SimRequest& request);

/// Throws ConfigError with all problems.
SimRequest parse_sim_request(const std::string& text);

/// The request of this process's environment, if there is one. Throws ConfigError with all problems.
std::optional<SimRequest> read_sim_request();

/// Tells who waits that this program has called accel::run: one byte. Throws ConfigError if the pipe is gone.
void acknowledge(const SimRequest& request);

}  // namespace accel::programs
