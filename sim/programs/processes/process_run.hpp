#pragma once

#include "sim/programs/processes/supervisor.hpp"
#include "sim/programs/runtime/rehearsal.hpp"
#include "sim/programs/runtime/sim_request.hpp"

namespace accel::programs {

/// Runs a program on simulated ranks that are processes, with everything that the request asks for. Returns sim-run's
/// exit code, or that of a program which ended before its ranks started. Throws ConfigError.
int run_process_ranks(RankProgram program, const SimRequest& request);

/// Like run_process_ranks, for ranks that another process starts: `descriptor` is its SharedArea, of request.ranks
/// ranks.
int attach_to_ranks(int descriptor, const SimRequest& request);

/// An interpreter that has imported what a Python program needs, and forks the ranks of one run after the other.
///
///     WarmProgram program(*python_program({"python3", "train.py"}));
///     const auto report = program.run(Rehearsal({.schedule = "random"}, 4), 4, folder);
///
/// Thread rule: one thread.
class WarmProgram {
 public:
  /// Returns when it is ready. Throws ConfigError if it cannot start; the interpreter has then printed why.
  explicit WarmProgram(RankProgram program);
  ~WarmProgram();
  WarmProgram(const WarmProgram&) = delete;
  WarmProgram& operator=(const WarmProgram&) = delete;

  /// Runs the program once. Standard output of the ranks goes to the files output0, output1, ... of the folder,
  /// standard error nowhere. Throws Error if the interpreter has ended.
  sim::SimulationReport run(const Rehearsal& rehearsal, int num_ranks, const std::string& folder);

 private:
  [[nodiscard]] bool is_ready();  // waits for it

  std::string name_;
  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace accel::programs
