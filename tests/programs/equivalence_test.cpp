// `accel test --equivalence`: Gloo processes over both transports against simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/programs/equivalence/equivalence_case.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::equivalence_test {
namespace {

using ::testing::HasSubstr;

CommandResult run_suite(const std::string& transport, const std::vector<std::string>& options) {
  std::vector<std::string> command{bin("accel"), "test", "--equivalence", "--cpu"};
  command.insert(command.end(), options.begin(), options.end());
  return run_command(command, {.environment = {{"ACCEL_GLOO_TRANSPORT", transport}}, .limit = std::chrono::hours(1)});
}

struct Share {
  const char* transport;
  int cases;         // of 300 per law; TCP needs three times as long
  const char* seed;  // different cases on each transport
};

class EquivalenceTest : public ::testing::TestWithParam<Share> {};

TEST_P(EquivalenceTest, GlooProcessesObserveWhatSimulatedRanksObserve) {
  const auto& share = GetParam();
  const auto cases = std::to_string(num_cases(share.cases));
  const auto run = run_suite(share.transport, {"--num_processes", "16", "--cases", cases, "--seed", share.seed});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  for (const auto* law : programs::kLaws)
    EXPECT_THAT(run.output, HasSubstr(std::string(law) + ": " + cases + " cases on 1 to 16 ranks"));
}

INSTANTIATE_TEST_SUITE_P(All, EquivalenceTest, ::testing::Values(Share{"shm", 200, "1"}, Share{"tcp", 100, "2"}),
                         [](const auto& share) { return std::string(share.param.transport); });

TEST(EquivalenceCommandTest, CaseIsRepeatedAlone) {
  const auto run = run_suite("tcp", {"--num_processes", "2", "--case", R"({"length":7,"batch_size":2,"ranks":2})"});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("no difference: "));
}

TEST(EquivalenceCommandTest, WrongOptionsAreReportedBeforeAnyRankStarts) {
  const auto law = run_suite("tcp", {"--num_processes", "2", "--law", "shards"});
  EXPECT_EQ(law.exit_code, 2);
  EXPECT_THAT(law.error, HasSubstr("shards"));
  const auto one = run_suite("tcp", {"--num_processes", "2", "--case", "{}"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.error, HasSubstr("batch_size: missing"));
}

TEST(EquivalenceCommandTest, OneRankHasNothingToCompare) {
  const auto run = run_suite("tcp", {"--num_processes", "1"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.error, HasSubstr("the job has one rank; expected two or more"));
}

}  // namespace
}  // namespace accel::testing::equivalence_test
