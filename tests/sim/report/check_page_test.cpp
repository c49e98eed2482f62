// The page of `sim-run check`, as text. The browser test checks how it looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/report/sample_reports.hpp"

namespace accel::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckPageTest, AFailureIsShownWithItsCauseItsLineAndItsFigure) {
  const auto page = check_page(testing::failed_checks());
  EXPECT_THAT(page, AllOf(HasSubstr("2 failed, 1 passed, 1 finding, 1 not applicable"),
                          HasSubstr("every rank reads all 6 samples"), HasSubstr("at train.py:12"),
                          HasSubstr("sim-run check --only samples -- python train.py"), HasSubstr("samples-of-samples"),
                          HasSubstr("href=\"calls/index.html\"")));
  EXPECT_THAT(page, HasSubstr("1.25e-02"));  // a quantity that differs
}

TEST(CheckPageTest, ARightProgramHasNoSectionOfAFailure) {
  auto report = testing::failed_checks();
  for (auto& check : report.checks) check.verdict = CheckVerdict::kPass;
  const auto page = check_page(report);
  EXPECT_THAT(page, AllOf(HasSubstr("0 failed, 5 passed"), Not(HasSubstr("<pre")), Not(HasSubstr("<svg"))));
}

// Samples of a large dataset share the columns of the picture; one that nobody reads must stay visible.
TEST(CheckPageTest, AMissingSampleOfALargeDatasetIsDrawn) {
  CheckReport report{.title = "large"};
  ReadSamples samples{.loader = "train.py:3", .size = 100'000, .by_rank = {{}, {}}};
  for (std::int64_t sample = 0; sample < samples.size; ++sample) {
    if (sample != 50'000) samples.by_rank[static_cast<std::size_t>(sample % 2)].push_back(sample);
  }
  report.checks.push_back(
      {.name = "samples", .verdict = CheckVerdict::kFail, .text = "never reads 1 sample", .samples = samples});
  EXPECT_THAT(check_page(report), AllOf(HasSubstr("no rank reads it"), Not(HasSubstr("2 times"))));
}

TEST(CheckPageTest, ThePageHasNoExternalContentAndEscapesText) {
  auto report = testing::failed_checks();
  report.title = "<script>&";
  for (auto& check : report.checks) check.text = check.where = check.replay = "<script>&";
  const auto page = check_page(report);
  for (const auto* forbidden : {"http:", "https:", "<script", "<link", "<img", "src=", "url("})
    EXPECT_THAT(page, Not(HasSubstr(forbidden)));
}

}  // namespace
}  // namespace accel::sim
