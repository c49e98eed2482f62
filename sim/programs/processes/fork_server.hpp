#pragma once

#include <memory>
#include <string>

#include "sim/programs/processes/supervisor.hpp"
#include "sim/programs/rehearsal/rehearsal.hpp"

namespace accel::programs {

/// An interpreter that has imported what a Python program needs, and forks the ranks of one run after the other.
///
///     ForkServer program(*python_program({"python3", "train.py"}));
///     const auto report = program.run(Rehearsal({.schedule = "random"}, 4), 4, folder);
///
/// Thread rule: one thread.
class ForkServer {
 public:
  /// Returns when it is ready. Throws ConfigError if it cannot start; the interpreter has then printed why.
  explicit ForkServer(RankProgram program);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Runs the program once. Standard output of the ranks goes to the files output0, output1, ... of the folder,
  /// standard error nowhere. Throws Error if the interpreter has ended.
  sim::SimulationReport run(const Rehearsal& rehearsal, int num_ranks, const std::string& folder);

 private:
  [[nodiscard]] bool is_ready();  // waits for it
  void finish_run();
  std::unique_ptr<Supervisor> start(int num_ranks, const std::string& folder, int restart_count);

  std::string name_;
  int socket_ = -1;
  pid_t pid_ = -1;
  bool is_running_ = false;
};

}  // namespace accel::programs
