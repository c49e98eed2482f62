// The program of `./dev report` on folders with complete, missing and broken files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/programs/verification_report/read_results.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRecord =
    R"({"law": "sharding", "sides": ["simulated, parallel", "Gloo threads"], "cases": 60, "differences": 0, "seed": 7,
        "date": "2026-11-25T16:21:06Z", "commit": "abc", "command": "./dev test equivalence_laws",
        "cells": [{"ranks": 2, "dimension": "source", "value": "plain", "cases": 60}]})";
constexpr const char* kBenchmarks =
    R"({"machine": {"cpu": "EPYC", "cores": 2}, "commit": "abc", "command": "step_bench", "date": "2026-11-25",
        "rows": [{"name": "mlp", "unit": "s", "median": 0.002, "samples": [0.002]},
                 {"name": "cnn", "unit": "s", "median": 0.005, "samples": [], "beside": "mlp", "ratio": 2.5}]})";
constexpr const char* kRun =
    "command: './dev test --long'\ncommit: abc\ndate: 2026-11-25T16:21:06Z\nbudget: long\nproperty_seed: 7\n"
    "oracle_seed: fresh\nprocessors: 2\n";

class VerificationReportTest : public ::testing::Test {
 protected:
  VerificationReportTest() {
    write("source/configs/sim/faults/jitter.yaml", "faults: []\n");
    write("source/reports/differences.md", "| A loop | Stays | Ends | - | `LoaderTest.Loop` |\n");
    write("source/reference/guide/differences.md", "\n## Loading\n\n* **A loop.** Ends.\n");
    fs::create_directories(folder_.path("artifacts"));
  }
  void write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(folder_.path(name)).parent_path());
    std::ofstream(folder_.path(name)) << content;
  }
  CommandResult run(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> command{bin("verification-report"), "--source", folder_.path("source"),   "--artifacts",
                                     folder_.path("artifacts"),  "--out",    folder_.path("page.html")};
    command.insert(command.end(), options.begin(), options.end());
    return run_command(command);
  }
  std::string page() const {
    std::ifstream in(folder_.path("page.html"));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TemporaryFolder folder_;
};

TEST_F(VerificationReportTest, ShowsWhatTheFoldersContain) {
  write("artifacts/run.yaml", kRun);
  write("artifacts/ctest-release.log",
        "1/2 Testing: fault_files_test\n"
        "[       OK ] Kinds/FaultFilesTest.Ends/jitter_on_4 (12 ms)\n"
        "[       OK ] LoaderTest.Loop (12 ms)\n");
  write("artifacts/distributions/loaders.json",
        R"({"generator": "loaders", "cases": 4, "counts": {"pads": {"true": 3, "false": 1}}})");
  write("source/reports/results/equivalence/sharding.json", kRecord);
  write("source/reports/results/step_bench.json", kBenchmarks);
  write("source/reports/results/mutants.json",
        R"({"patches": [{"area": "shards", "name": "one", "what": "A fault.", "survives": "", "result": "assertion",
                         "test": "data_test", "message": "", "seconds": 1.5, "commit": "abc", "date": "2026-11-25"}],
            "generated": []})");
  write("history/0123456-step_bench.json", R"({"one_rank": {"ratio": 1.5}})");
  write("history/abc-step_bench.json", kBenchmarks);  // the current file
  const auto result = run({"--history", folder_.path("history"), "--commit", "def"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(page(), AllOf(HasSubstr("60 cases, ✓ 0 differences, seed 7, 2026-11-25"), HasSubstr("./dev test --long"),
                            HasSubstr("pads: true<td>3<td>75 %"), HasSubstr("Assertions killed 100 %"),
                            HasSubstr("2.5 times mlp"),
                            HasSubstr("No earlier measurements are stored. 1 earlier file in a format without rows"),
                            HasSubstr("jitter<td>FaultFilesTest.Ends<td>1<td>0"), HasSubstr("Loading: 1 difference"),
                            HasSubstr("passed 1, failed 0 and left out 0")));
}

// A checkout in which nothing was run yet.
TEST_F(VerificationReportTest, WithoutResultsThePageSaysWhatToRun) {
  const auto result = run();
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(page(), AllOf(HasSubstr("No mutant was run. ./dev mutants"), HasSubstr("No measurements. ./dev bench")));
}

TEST_F(VerificationReportTest, EveryBrokenFileIsListedInOneErrorAndNoPageIsWritten) {
  write("artifacts/equivalence/sharding.json", R"({"law": "sharding")");
  write("artifacts/distributions/loaders.json", R"({"generator": "loaders", "cases": 4})");
  write("source/reports/results/mutants.json", "[]");
  fs::remove(folder_.path("source/reports/differences.md"));
  const auto result = run();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("artifacts/equivalence/sharding.json: "),
                                  HasSubstr("./dev test --label equivalence wrote, run it again or remove the file"),
                                  HasSubstr("artifacts/distributions/loaders.json: "), HasSubstr("mutants.json: "),
                                  HasSubstr("reports/differences.md")));
  EXPECT_FALSE(fs::exists(folder_.path("page.html")));
}

// Without it nobody could repeat the numbers of the logs.
TEST_F(VerificationReportTest, LogsWithoutTheFileThatDescribesTheirRunAreAnError) {
  write("artifacts/ctest-release.log", "[       OK ] LoaderTest.Loop (12 ms)\n");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("artifacts/run.yaml"), HasSubstr("./dev test")));
}

TEST_F(VerificationReportTest, WrongFoldersAreUsageErrors) {
  const auto missing = run_command({bin("verification-report"), "--artifacts", "/nowhere", "--out", "page.html"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.error, HasSubstr("/nowhere"));
  const auto out = run_command({bin("verification-report"), "--artifacts", folder_.path("artifacts"), "--source",
                                folder_.path("source"), "--out", folder_.path("missing/page.html")});
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.error, HasSubstr("is not a folder; create it first"));
}

// The list and the guide of this repository, which people edit by hand.
TEST_F(VerificationReportTest, EveryDifferenceOfTheRepositoryHasAnArea) {
  const auto report = programs::read_results({.source = source("."), .artifacts = folder_.path("artifacts")});
  EXPECT_GT(report.differences.size(), 100u);
  for (const auto& one : report.differences) {
    EXPECT_NE(one.area, "Other") << one.subject;
    EXPECT_GT(one.tests, 0) << one.subject;
  }
}

}  // namespace
}  // namespace accel::testing
