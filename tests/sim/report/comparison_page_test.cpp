// The page of a comparison, as text. The browser test checks how it looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/report/sample_reports.hpp"

namespace accel::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ComparisonPageTest, ADifferenceIsShownWithWhatPrecedesIt) {
  const auto page = comparison_page(testing::different_runs());
  EXPECT_THAT(page, AllOf(HasSubstr("✕ different"), Not(HasSubstr("✓ equal")),
                          HasSubstr("<pre tabindex=\"0\">rank 1, step 2: the output of module body.1 differs"),
                          HasSubstr("the output of module body.0"), HasSubstr("b (gloo)"),
                          HasSubstr("0 of 2 ranks have no difference.")));
}

TEST(ComparisonPageTest, EqualRunsHaveNoDifference) {
  const auto page = comparison_page(testing::equal_runs());
  EXPECT_THAT(page, AllOf(HasSubstr("✓ equal"), HasSubstr("None: all observations are equal."),
                          HasSubstr("2 of 2 ranks have no difference."), Not(HasSubstr("<pre"))));
}

// A page is mailed and archived as one file, and module names come from the program.
TEST(ComparisonPageTest, ThePageHasNoExternalContentAndEscapesText) {
  auto report = testing::different_runs();
  report.difference = report.title = "<script>&";
  report.around.front().what = "<script>&";
  const auto page = comparison_page(report);
  for (const auto* forbidden : {"http:", "https:", "<script", "<link", "<img", "src=", "href", "url("})
    EXPECT_THAT(page, Not(HasSubstr(forbidden)));
}

}  // namespace
}  // namespace accel::sim
