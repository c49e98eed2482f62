// What the logs of ctest and the list of differences say.
#include "sim/programs/verification_report/test_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::programs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;

constexpr const char* kLog =
    "Start testing: Nov 25 16:21 UTC\n"
    "3/102 Testing: fault_files_test\n"
    "3/102 Test: fault_files_test\n"
    "[ RUN      ] Kinds/FaultFilesTest.Ends/rank_hang_on_4\n"
    "[       OK ] Kinds/FaultFilesTest.Ends/rank_hang_on_4 (12 ms)\n"
    "[       OK ] Kinds/FaultFilesTest.Ends/rank_hang_late_on_4 (12 ms)\n"
    "[  FAILED  ] Kinds/FaultFilesTest.Ends/rank_hang_on_8_sharded, where GetParam() = (\"rank_hang\", 8) (3 ms)\n"
    "[  FAILED  ] 1 test, listed below:\n"
    "[  FAILED  ] Kinds/FaultFilesTest.Ends/rank_hang_on_8_sharded, where GetParam() = (\"rank_hang\", 8)\n"
    "4/102 Testing: data_test\n"
    "[       OK ] ShardPlanTest.ShortTail (0 ms)\n"
    "[       OK ] Types/TypedTest/0.Works (0 ms)\n"
    "5/102 Testing: fault_effects_test\n"
    "[       OK ] PlansTest.Seeds (0 ms)\n";

auto is_result(const std::string& entry, const std::string& name, const std::string& parameter, bool passed) {
  return AllOf(Field(&TestResult::entry, entry), Field(&TestResult::name, name),
               Field(&TestResult::parameter, parameter), Field(&TestResult::passed, passed));
}

TEST(TestResultsTest, EveryTestOfALogIsReadOnce) {
  EXPECT_THAT(read_test_log(kLog).results,
              ElementsAre(is_result("fault_files_test", "FaultFilesTest.Ends", "rank_hang_on_4", true),
                          is_result("fault_files_test", "FaultFilesTest.Ends", "rank_hang_late_on_4", true),
                          is_result("fault_files_test", "FaultFilesTest.Ends", "rank_hang_on_8_sharded", false),
                          is_result("data_test", "ShardPlanTest.ShortTail", "", true),
                          is_result("data_test", "TypedTest.Works", "", true),
                          is_result("fault_effects_test", "PlansTest.Seeds", "", true)));
}

TEST(TestResultsTest, AProgramThatEndedWithoutAFailedTestCanHaveFailed) {
  EXPECT_THAT(
      read_test_log("1/3 Testing: data_test\nTest Passed.\n2/3 Testing: equivalence_laws\n[ RUN      ] A.B\n"
                    "Test Failed.\n\"equivalence_laws\" time elapsed: 00:20:00\n3/3 Testing: rest\nTest Passed.\n")
          .failed_entries,
      ElementsAre("equivalence_laws"));
}

TEST(TestResultsTest, FaultsAreCountedByTheLongestKind) {
  const auto runs = fault_runs(read_test_log(kLog).results, {"rank_hang", "rank_hang_late"});
  const auto is_runs = [](const std::string& fault, const std::string& test, int passed, int failed) {
    return AllOf(Field(&sim::FaultRuns::fault, fault), Field(&sim::FaultRuns::test, test),
                 Field(&sim::FaultRuns::passed, passed), Field(&sim::FaultRuns::failed, failed));
  };
  EXPECT_THAT(runs, ElementsAre(is_runs("rank_hang", "FaultFilesTest.Ends", 1, 1),
                                is_runs("rank_hang_late", "FaultFilesTest.Ends", 1, 0),
                                is_runs("generated or several", "PlansTest.Seeds", 1, 0)));
}

TEST(TestResultsTest, DifferencesHaveTheirAreaAndTheResultsOfTheirTests) {
  const auto differences = read_differences(
      "# Title\n| Subject | Accelerate 1.15 | accel | Thread | Test |\n|---|---|---|---|---|\n"
      "| `gather` of lists | Flattens | Keeps | A#1 | `ShardPlanTest.ShortTail`, `FaultFilesTest.Ends`, `No.Run` |\n"
      "| A loop (`A_*`) | Stays | Ends | - | `TypedTest.Works` |\n",
      "# Guide\n\n## Metrics\n\n* **`gather` of\n  lists.** Keeps.[^1]\n\n## Loading\n\n* **A loop (`A_*`).** "
      "Ends.[^2]\n",
      read_test_log(kLog).results);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].area, "Metrics");
  EXPECT_EQ(differences[0].subject, "gather of lists");
  EXPECT_EQ(differences[0].theirs, "Flattens");
  EXPECT_EQ(differences[0].ours, "Keeps");
  EXPECT_EQ(differences[0].tests, 3);
  EXPECT_EQ(differences[0].passed, 1);
  EXPECT_EQ(differences[0].failed, 1);
  EXPECT_EQ(differences[1].area, "Loading");
  EXPECT_EQ(differences[1].threads, "none known");
  EXPECT_EQ(differences[1].passed, 1);
}

}  // namespace
}  // namespace accel::programs
