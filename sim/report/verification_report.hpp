#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// What tests, mutants and benchmarks showed, as one self-contained HTML page with the look of the page of a run.
///
///     VerificationReport report{.title = "accel", .tests = {.command = "./dev test", .date = "2026-11-25"}};
///     report.comparisons = {{.law = "sharding", .left = "simulated", .right = "Gloo threads", .cases = 60}};
///     std::ofstream("report.html") << verification_page(report);
///
/// Thread rule: values; verification_page from any thread.
namespace accel::sim {

/// What repeats a result. Empty texts: unknown.
struct ResultOrigin {
  std::string command = {}, commit = {}, date = {};
};

/// The compared cases on a number of ranks that have a value in one dimension, such as num_workers = 2.
struct ComparedCell {
  int ranks = 1;
  std::string dimension, value;
  std::int64_t cases = 0;
};

/// One law on two backends.
struct LawComparison {
  std::string law, left, right;
  std::int64_t cases = 0, differences = 0;
  std::uint64_t seed = 0;
  ResultOrigin origin = {};
  std::vector<ComparedCell> cells = {};
};

/// How often a generator of cases drew each value of a feature.
struct GeneratorFeature {
  std::string name;
  std::vector<std::pair<std::string, std::int64_t>> values;  ///< value, cases
};
struct GeneratorDistribution {
  std::string generator;
  std::int64_t cases = 0;
  std::vector<GeneratorFeature> features = {};
};

/// A version of the library with one planted fault.
struct MutantResult {
  std::string area, name, what;
  std::string result = {};    ///< "assertion", "crash" or "time-out" (it was killed), "survived", ...; "": not run
  std::string test = {};      ///< that noticed it
  std::string survives = {};  ///< why no test can notice it; "": unknown
  std::string commit = {}, date = {};
};

struct BenchmarkResult {
  std::string name;  ///< program and row
  double median = 0;
  std::string unit = {};
  std::optional<double> ratio = {};  ///< to the benchmark `beside`
  std::string beside = {}, machine = {};
  ResultOrigin origin = {};
};

/// The runs of one test under an injected fault.
struct FaultRuns {
  std::string fault, test;
  int passed = 0, failed = 0;
};

/// A known difference from Accelerate.
struct KnownDifference {
  std::string area, subject, theirs, ours, threads;
  int tests = 0, passed = 0, failed = 0;  ///< tests that hold our behaviour, and how they ended in this run
};

/// The contents of the page. A section without data is one line that names the command that produces the data.
struct VerificationReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts = {};  ///< name and value
  ResultOrigin tests = {};  ///< of the run that `generators`, `faults` and the tests of `differences` are from
  std::vector<std::string> failed_tests = {};  ///< programs of that run that failed, crashed or exceeded their time
  std::vector<LawComparison> comparisons = {};
  std::vector<GeneratorDistribution> generators = {};
  std::vector<MutantResult> mutants = {};
  std::vector<BenchmarkResult> benchmarks = {};  ///< several with one name are measurements of several commits
  int unread_benchmark_files = 0;                ///< earlier files in a format that the page does not show
  std::vector<FaultRuns> faults = {};
  std::vector<KnownDifference> differences = {};
};

/// Returns the page in UTF-8, without scripts or external resources. Equal reports give equal bytes. Throws
/// ArgumentError that lists every number that is negative or not finite.
std::string verification_page(const VerificationReport& report);

}  // namespace accel::sim
