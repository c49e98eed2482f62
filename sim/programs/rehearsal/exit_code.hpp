#pragma once

#include <exception>

namespace accel::programs {

/// The exit codes of the programs, and of accel::run under sim-run.
enum ExitCode {
  kSuccess = 0,
  kFailure = 1,    ///< the run failed
  kUsage = 2,      ///< a bad option, config, file or variable, before anything ran
  kDiagnosed = 3,  ///< a simulated run ended in a diagnosed hang or desync
};

/// Returns the exit code for the error that ended the run; among simulated ranks, only errors that are not consequences
/// of other ranks' errors count.
ExitCode exit_code_of(const std::exception& error);

}  // namespace accel::programs
