#pragma once

#include <string>
#include <vector>

/// Checks command lines in documentation and in the files of CI against the options that the programs declare.
///
/// Example: `problems_of_command(Declarations(), "./dev fly")` returns {"./dev fly: no command fly"}.
namespace accel::testing {

/// Texts in which the programs declare their commands and options.
struct Declarations {
  Declarations();
  std::string dev, sim_run, accel;
};

/// Returns what is wrong with the calls of our programs in a command line.
std::vector<std::string> problems_of_command(const Declarations& declared, const std::string& command);

}  // namespace accel::testing
