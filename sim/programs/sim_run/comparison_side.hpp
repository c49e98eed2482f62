#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/comparison/recording.hpp"

namespace accel::programs {

inline constexpr const char* kComparisonBackends[] = {"sim", "gloo", "nccl", "python"};

/// What both sides of a comparison run: an experiment, or a user program.
struct ComparedProgram {
  std::string experiment = {};
  std::vector<std::string> command = {};
  int num_ranks = 0;
  bool tensors = false;
  /// Compares what Python's Accelerate records as well: the lines of `--trace` instead of recordings.
  bool uses_traces = false;
  bool values = false;                         ///< records the elements of tensors, too
  bool same_work = false;                      ///< see RecordOptions
  bool map_cuda = false;                       ///< see RehearsalOptions
  std::optional<std::int64_t> max_steps = {};  ///< of a user program
  std::vector<std::string> variables = {};     ///< NAME=VALUE: additions to the environment
};

/// One side.
struct ComparisonSide {
  std::string letter;                       ///< "a" or "b"
  std::string backend;                      ///< one of kComparisonBackends
  std::vector<std::string> overrides = {};  ///< of the experiment, as `key.path=value`

  [[nodiscard]] std::string name() const { return letter + " (" + backend + ")"; }
};

/// How a side ended.
struct SideRun {
  int exit_code = 0;
  std::string error = {};    ///< standard error, if the exit code is not 0
  Recording recording = {};  ///< what the ranks computed, also before a failure
};

/// Returns why experiments cannot run under Python's Accelerate here, and the command that installs what is missing;
/// "" if they can.
std::string problem_of_python();

/// Runs one side in a separate process: sim-run, or Python. `folder` is for its files.
SideRun run_side(const ComparedProgram& program, const ComparisonSide& side, const std::string& folder);

}  // namespace accel::programs
