#pragma once

#include <map>
#include <string>
#include <vector>

namespace accel::programs {

/// What stands before and after `--` on sim-run's command line.
struct UserProgram {
  std::vector<std::string> options;
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};  ///< added for the program
};

/// Runs a program of the user's own on the ranks that the options ask for, and returns sim-run's exit code: one
/// process, in which accel::run makes simulated ranks, or one process per rank over a real backend. What ends sim-run
/// ends the program. Throws ConfigError with all problems of the options, or if the program cannot be started.
int run_user_program(const UserProgram& program);

}  // namespace accel::programs
