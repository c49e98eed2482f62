// `accel test --equivalence`: Gloo processes over both transports against simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/programs/equivalence/equivalence_case.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/support/artifacts.hpp"
#include "tests/support/budget.hpp"
#include "tests/support/property_seed.hpp"

namespace accel::testing::equivalence_test {
namespace {

using ::testing::HasSubstr;

CommandResult run_suite(const std::string& transport, const std::vector<std::string>& options) {
  std::vector<std::string> command{bin("accel"), "test", "--equivalence", "--cpu"};
  command.insert(command.end(), options.begin(), options.end());
  return run_command(command, {.environment = {{"ACCEL_GLOO_TRANSPORT", transport}}, .limit = std::chrono::hours(1)});
}

struct Share {
  const char* name;
  const char* transport;
  int cases;         // per law; TCP needs five times as long
  const char* seed;  // different cases in each share; nullptr: the fresh seed of this run
};

class EquivalenceTest : public ::testing::TestWithParam<Share> {};

TEST_P(EquivalenceTest, GlooProcessesObserveWhatSimulatedRanksObserve) {
  const auto& share = GetParam();
  const auto cases = std::to_string(num_cases(share.cases));
  std::vector<std::string> options{
      "--num_processes", "16",
      "--cases",         cases,
      "--seed",          share.seed != nullptr ? share.seed : std::to_string(property_seeds().back())};
  if (const auto folder = artifact_path("equivalence")) {
    std::filesystem::create_directories(*folder);
    options.insert(options.end(), {"--out", folder->string()});
  }
  const auto run = run_suite(share.transport, options);
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;  // the output names the case and the command that repeats it
  for (const auto* law : programs::kLaws)
    EXPECT_THAT(run.output, HasSubstr(std::string(law) + ": " + cases + " cases on 1 to 16 ranks"));
}

INSTANTIATE_TEST_SUITE_P(All, EquivalenceTest,
                         ::testing::Values(Share{"shm", "shm", 60, "1"}, Share{"tcp", "tcp", 20, "2"},
                                           Share{"fresh", "shm", 60, nullptr}),
                         [](const auto& share) { return std::string(share.param.name); });

TEST(EquivalenceCommandTest, CaseIsRepeatedAlone) {
  const auto run = run_suite("tcp", {"--num_processes", "2", "--case", R"({"length":7,"batch_size":2,"ranks":2})"});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("no difference: "));
}

TEST(EquivalenceCommandTest, ACaseOnAnotherNumberOfRanksRunsInTwoJobs) {
  const auto run = run_suite(
      "tcp", {"--num_processes", "3", "--case",
              R"({"length":20,"batch_size":2,"shuffle":true,"ranks":3,"interruption":"resume","resumed_ranks":2})"});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("no difference: "));
}

TEST(EquivalenceCommandTest, OutHoldsTheCasesOfEveryLaw) {
  const TemporaryFolder folder;
  const std::vector<std::string> options{"--num_processes", "2", "--cases", "12",
                                         "--seed",          "5", "--out",   folder.path()};
  const auto run = run_suite("tcp", options);
  ASSERT_EQ(run.exit_code, 0) << run.output << run.error;
  for (const std::string law : programs::kLaws) {
    std::ifstream file(folder.path(law + "--simulated_parallel--gloo_processes_over_tcp.json"));
    const auto record = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(record.is_object()) << law;
    EXPECT_EQ(record["law"], law);
    EXPECT_EQ(record["sides"], nlohmann::json({"simulated, parallel", "Gloo processes over TCP"}));
    EXPECT_EQ(record["cases"], 12);
    EXPECT_EQ(record["differences"], 0);
    EXPECT_EQ(record["command"], "ACCEL_GLOO_TRANSPORT=tcp accel test --equivalence --cpu --num_processes 2 --law " +
                                     law + " --cases 12 --seed 5");
    std::map<std::string, int> of_dimensions;
    for (const auto& cell : record["cells"]) {
      EXPECT_THAT(cell["ranks"], ::testing::AnyOf(1, 2));
      of_dimensions[cell["dimension"]] += cell["cases"].get<int>();
    }
    for (const auto* dimension : {"source", "num_workers", "split_batches", "even_batches", "interruption",
                                  "interrupted_after", "resumed_ranks", "second_loader", "before_epochs"})
      EXPECT_EQ(of_dimensions[dimension], 12) << law << ", " << dimension;
    EXPECT_THAT(record["pairs"], ::testing::MatchesRegex("[0-9]+ of [0-9]+ pairs of values of two dimensions"));
    EXPECT_FALSE(record["pairs_missing"].empty());
  }
}

TEST(EquivalenceCommandTest, WrongOptionsAreReportedBeforeAnyRankStarts) {
  const auto law = run_suite("tcp", {"--num_processes", "2", "--law", "shards"});
  EXPECT_EQ(law.exit_code, 2);
  EXPECT_THAT(law.error, HasSubstr("shards"));
  const auto one = run_suite("tcp", {"--num_processes", "2", "--case", "{}"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.error, HasSubstr("batch_size: missing"));
  const auto out = run_suite("tcp", {"--num_processes", "2", "--out", "/nowhere"});
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.error, HasSubstr("/nowhere"));
}

TEST(EquivalenceCommandTest, OneRankHasNothingToCompare) {
  const auto run = run_suite("tcp", {"--num_processes", "1"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.error, HasSubstr("the job has one rank; expected two or more"));
}

}  // namespace
}  // namespace accel::testing::equivalence_test
