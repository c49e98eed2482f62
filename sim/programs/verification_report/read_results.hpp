#pragma once

#include <string>

#include "sim/report/verification_report.hpp"

/// Reads what the tests, the mutants and the benchmarks left, for the page of `./dev report`.
namespace accel::programs {

struct ResultFolders {
  std::string source = ".";  ///< the repository: reports/, reference/guide/differences.md, configs/sim/faults/
  std::string artifacts;     ///< of `./dev test`
  std::string history = {};  ///< earlier files of benchmarks, COMMIT-NAME.json; "": none
};

/// Returns the report without a title. What was not run is empty. Throws ConfigError that lists all files that are
/// missing or cannot be read.
sim::VerificationReport read_results(const ResultFolders& folders);

}  // namespace accel::programs
