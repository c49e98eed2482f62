#include "sim/programs/verification_report/read_results.hpp"

#include <yaml-cpp/yaml.h>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/programs/verification_report/result_files.hpp"
#include "sim/programs/verification_report/test_results.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

// What `./dev test` wrote about itself, in the order of the page.
void read_run(const fs::path& path, sim::VerificationReport& report, Problems& problems) {
  try {
    const auto run = YAML::LoadFile(path.string());
    const auto value = [&](const char* key) { return run[key].as<std::string>(); };
    report.tests = {.command = value("command"), .commit = value("commit"), .date = value("date")};
    for (const auto* key : {"budget", "property_seed", "processors"}) report.facts.emplace_back(key, value(key));
  } catch (const YAML::Exception& error) {
    problems.push_back(fmt::format("{}: {}; expected the file that ./dev test writes beside its logs, run it again",
                                   path.string(), error.what()));
  }
}

std::vector<std::string> kinds_of_faults(const fs::path& folder, Problems& problems) {
  std::vector<std::string> kinds;
  for (const auto& path : files_in(folder, ".yaml")) kinds.push_back(path.stem().string());
  if (kinds.empty())
    problems.push_back(fmt::format("{}: contains no .yaml; expected one file per kind of fault", folder.string()));
  return kinds;
}

}  // namespace

sim::VerificationReport read_results(const ResultFolders& folders) {
  const fs::path source = folders.source, artifacts = folders.artifacts, results = source / "reports/results";
  Problems problems;
  sim::VerificationReport report;
  std::vector<TestResult> tests;
  for (const auto& path : files_in(artifacts, ".log")) {
    if (!path.filename().string().starts_with("ctest-")) continue;
    const auto log = read_test_log(read_file(path, problems).value_or(""));
    tests.insert(tests.end(), log.results.begin(), log.results.end());
    report.failed_tests.insert(report.failed_tests.end(), log.failed_entries.begin(), log.failed_entries.end());
  }
  report.generators = read_generators(artifacts / "distributions", problems);
  if (!tests.empty() || !report.generators.empty()) read_run(artifacts / "run.yaml", report, problems);
  // Results of long runs are kept in the repository.
  for (const auto& folder : {artifacts / "equivalence", results / "equivalence"}) {
    auto comparisons = read_comparisons(folder, problems);
    report.comparisons.insert(report.comparisons.end(), comparisons.begin(), comparisons.end());
  }
  report.mutants = read_mutants(results / "mutants.json", problems);
  auto benchmarks = read_benchmarks(results, folders.history, problems);
  report.benchmarks = std::move(benchmarks.results);
  report.unread_benchmark_files = benchmarks.num_without_rows;
  report.faults = fault_runs(tests, kinds_of_faults(source / "configs/sim/faults", problems));
  report.differences =
      read_differences(read_file(source / "reports/differences.md", problems).value_or(""),
                       read_file(source / "reference/guide/differences.md", problems).value_or(""), tests);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return report;
}

}  // namespace accel::programs
