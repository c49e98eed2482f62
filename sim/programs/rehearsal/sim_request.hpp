#pragma once

#include <optional>
#include <string>

#include "sim/programs/comparison/record_options.hpp"
#include "sim/programs/rehearsal/rehearsal_options.hpp"

namespace accel::programs {

inline constexpr const char* kSimRequestVariable = "ACCEL_SIM";
inline constexpr const char* kBackends[] = {"sim", "gloo", "nccl"};

/// sim-run's request to a user program: one JSON object in the environment variable ACCEL_SIM. It may also be set by
/// hand, e.g. to run the ranks in a debugger:
///
///     ACCEL_SIM='{"ranks":8}' gdb ./train
struct SimRequest {
  int ranks = 1;  ///< required
  std::string backend = "sim";
  RehearsalOptions rehearsal;  ///< one key per option, spelled like the option with "_" for "-"
  std::string sweep;           ///< file of a sweep's points so far, one JSON object per line; this run appends its own
  RecordOptions record;        ///< keys `record`, `record_tensors`, `record_values`, `record_steps` and so on
  std::optional<int> acknowledge;  ///< descriptor of the pipe on which sim-run waits for `acknowledge`
};

std::string to_json(const SimRequest& request);

/// Throws ConfigError with all problems.
SimRequest parse_sim_request(const std::string& text);

/// Returns the request in this process's environment, if any. Throws ConfigError with all problems.
std::optional<SimRequest> read_sim_request();

/// Reports to the waiting sim-run that this program has called accel::run, by writing one byte. Throws ConfigError if
/// the pipe is gone.
void acknowledge(const SimRequest& request);

/// Reports that accel::run has returned from its simulated ranks, by another byte. Without it, a process that one rank
/// has ended with exit code 0 would look like a success.
void acknowledge_end(const SimRequest& request);

}  // namespace accel::programs
