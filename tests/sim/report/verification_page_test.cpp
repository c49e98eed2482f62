// The page of a verification, as text. The browser test checks how it looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reference/core/errors.hpp"
#include "sim/report/verification_sections.hpp"
#include "tests/sim/report/sample_reports.hpp"

namespace accel::sim {
namespace {

using ::testing::AllOf;
using testing::full_verification;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(VerificationPageTest, EverySectionShowsItsNumbersWithTheirCommand) {
  const auto page = verification_page(full_verification());
  EXPECT_THAT(
      page, AllOf(HasSubstr("✓ no difference between backends"),
                  HasSubstr("960 cases of 2 laws on 3 pairs of backends, no difference."),
                  HasSubstr("160 cases, ✓ 0 differences, seed 20261121, 2026-11-25"),
                  HasSubstr("./dev test equivalence_laws"), HasSubstr("Command: ./dev test; commit 0123456789abcdef")));
  EXPECT_THAT(page, AllOf(HasSubstr("pads: true<td>1,100<td>55 %"), HasSubstr("Assertions killed 50 % of these"),
                          HasSubstr("Command: ./dev mutants"), HasSubstr("<th scope=\"row\">scaler<td>1<td>–<td>1")));
  EXPECT_THAT(page, AllOf(HasSubstr("1 earlier measurement stored. 3 earlier files in a format without rows."),
                          HasSubstr("420 µs<td>1.01 times step/mlp/batch:32/libtorch"),
                          HasSubstr("--out reports/results/step_bench.json"), HasSubstr("470 µs")));
  EXPECT_THAT(page,
              AllOf(HasSubstr("ended as the test requires: 5 of 5"),
                    HasSubstr("1 known difference in 1 area. Of the 3 tests that hold them, this run of the tests "
                              "passed 2, failed 0 and left out 1.")));
}

TEST(VerificationPageTest, ASectionWithoutDataNamesTheCommandThatProducesIt) {
  const auto page = verification_page({.title = "empty"});
  for (const auto* command : {"./dev test --label equivalence", "./dev test distribution_laws", "./dev mutants",
                              "./dev bench", "./dev test fault"})
    EXPECT_THAT(page, HasSubstr(command));
  EXPECT_THAT(page,
              AllOf(HasSubstr("! no comparison of backends was run"), Not(HasSubstr("✓")), Not(HasSubstr("<table"))));
}

TEST(VerificationPageTest, ADifferenceIsTheVerdict) {
  auto report = full_verification();
  report.comparisons[2].differences = 1;
  report.failed_tests = {"equivalence_laws", "fault_files_test"};
  EXPECT_THAT(verification_page(report),
              AllOf(HasSubstr("✕ 1 difference between backends, failed tests: equivalence_laws, fault_files_test"),
                    HasSubstr("160 cases, ✕ 1 difference, seed"), Not(HasSubstr("✓ no difference between backends"))));
}

// A newer run with a difference must not be hidden by an older and longer one.
TEST(VerificationPageTest, TheMatrixShowsDifferencesFirstAndElseTheMostCases) {
  VerificationReport report;
  report.comparisons = {{.law = "sharding", .left = "a", .right = "b", .cases = 60},
                        {.law = "sharding", .left = "a", .right = "b", .cases = 600}};
  EXPECT_EQ(report::comparison_of(report, "sharding", "a", "b"), &report.comparisons[1]);
  report.comparisons[0].differences = 1;
  EXPECT_EQ(report::comparison_of(report, "sharding", "a", "b"), &report.comparisons[0]);
  EXPECT_EQ(report::comparison_of(report, "training", "a", "b"), nullptr);
}

// One rank never pads, so that cell is not empty but impossible; the cell of two ranks was only missed.
TEST(VerificationPageTest, CellsThatAnotherComparisonReachedAreEmpty) {
  VerificationReport report;
  report.comparisons = {{.law = "sharding", .left = "a", .right = "b"}, {.law = "sharding", .left = "a", .right = "c"}};
  report.comparisons[0].cells = {{1, "padding", "false", 1}, {2, "padding", "false", 1}};
  report.comparisons[1].cells = {
      {1, "padding", "false", 1}, {2, "padding", "false", 1}, {2, "padding", "true", 1}, {3, "padding", "true", 1}};
  EXPECT_EQ(report::num_empty_cells(report, report.comparisons[0]), 1u);
  EXPECT_EQ(report::num_empty_cells(report, report.comparisons[1]), 0u);
  const auto page = verification_page(report);
  EXPECT_THAT(page, AllOf(HasSubstr("1 empty cell"), HasSubstr("padding: true<td>–<td>0")));
}

TEST(VerificationPageTest, ColumnsOfManyRanksAreRanges) {
  EXPECT_EQ(report::rank_column(1), "1");
  EXPECT_EQ(report::rank_column(16), "16");
  EXPECT_EQ(report::rank_column(17), "17-32");
  EXPECT_EQ(report::rank_column(64), "33-64");
}

TEST(VerificationPageTest, WrongNumbersAreListedInOneError) {
  auto report = full_verification();
  report.comparisons[0].cases = -1;
  report.benchmarks[0].median = std::numeric_limits<double>::quiet_NaN();
  try {
    verification_page(report);
    FAIL() << "expected an ArgumentError";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("sharding, simulated, parallel and Gloo processes over TCP: cases"),
                                    HasSubstr("step/mlp/batch:32/accelerator: median")));
  }
}

// A page is mailed and archived as one file, and names come from files.
TEST(VerificationPageTest, ThePageHasNoExternalContentAndEscapesText) {
  auto report = full_verification();
  const std::string text = "<script>&";
  report.title = report.comparisons[0].right = report.generators[0].features[0].name = report.mutants[0].what = text;
  report.benchmarks[0].name = report.faults[0].fault = report.differences[0].subject = report.tests.command = text;
  const auto page = verification_page(report);
  for (const auto* forbidden : {"http:", "https:", "<script", "<link", "<img", "src=", "href", "url("})
    EXPECT_THAT(page, Not(HasSubstr(forbidden)));
}

}  // namespace
}  // namespace accel::sim
