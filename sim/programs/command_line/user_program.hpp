#pragma once

#include <map>
#include <string>
#include <vector>

namespace accel::programs {

/// The parts of sim-run's command line before and after `--`.
struct UserProgram {
  std::vector<std::string> options;
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};  ///< added for the program
  bool has_processes = false;                           ///< simulated ranks are processes
};

/// Runs a user program on the requested ranks: as one process, in which accel::run creates simulated ranks, or as one
/// process per rank over a real backend. Returns sim-run's exit code. Signals that end sim-run also end the program.
/// Throws ConfigError with all problems of the options, or if the program cannot be started.
int run_user_program(const UserProgram& program);

/// Runs simulated ranks that the process at the other end of this descriptor starts: `sim-run attach DESCRIPTOR
/// [options]`. Without options, the request in ACCEL_SIM applies. Returns sim-run's exit code.
int run_attached(const std::vector<std::string>& arguments);

}  // namespace accel::programs
