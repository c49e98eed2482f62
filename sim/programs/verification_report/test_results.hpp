#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/programs/verification_report/result_files.hpp"

/// Which tests passed, from the logs of ctest, and what that says about faults and differences.
namespace accel::programs {

/// One GoogleTest test.
struct TestResult {
  std::string entry;      ///< of ctest
  std::string name;       ///< SUITE.TEST, without the names of instantiations
  std::string parameter;  ///< "": none
  bool passed = false;
};

struct TestLog {
  std::vector<TestResult> results;
  std::vector<std::string> failed_entries;  ///< of ctest, such as programs that crashed or ran into their time limit
};

/// Reads a log of ctest, which contains the complete output of every test.
TestLog read_test_log(const std::string& text);

/// Counts the tests under injected faults: per kind of fault where a test has it as parameter, else per test.
std::vector<sim::FaultRuns> fault_runs(const std::vector<TestResult>& results, const std::vector<std::string>& kinds);

/// Reads the table of reports/differences.md, and finds each subject's area in the guide's page.
std::vector<sim::KnownDifference> read_differences(const std::string& table, const std::string& guide,
                                                   const std::vector<TestResult>& results);

}  // namespace accel::programs
