// accel data-check, as a user calls it: the table, the findings with their remedies, and the exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::data_check_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

// Runs `accel data-check` with these options.
CommandResult data_check(std::vector<std::string> options) {
  options.insert(options.begin(), {bin("accel"), "data-check"});
  return run_command(options, {.limit = std::chrono::seconds(30)});
}

// Returns its findings, as "RANKS KIND: TEXT".
std::vector<std::string> findings(std::vector<std::string> options) {
  options.emplace_back("--json");
  const auto run = data_check(options);
  EXPECT_EQ(run.exit_code, 0) << run.error;
  std::vector<std::string> found;
  const auto answer = Json::parse(run.output);
  for (const auto& of_ranks : answer["loaders"][0]["ranks"]) {
    for (const auto& finding : of_ranks["findings"]) {
      found.push_back(of_ranks["ranks"].dump() + " " + finding["kind"].get<std::string>() + ": " +
                      finding["text"].get<std::string>());
    }
  }
  return found;
}

// The exact table is compared, because columns must stay aligned for all widths.
TEST(DataCheckTest, TheTableCountsEveryNumberOfRanksAndTheFindingsSayWhatToChange) {
  const auto run = data_check({"--length", "60000", "--batch-size", "32", "--ranks", "1,7-8"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.output,
            "loader: 60000 samples, batch_size 32\n"
            " ranks           steps  samples/step  duplicated     dropped  without a batch\n"
            "     1            1875            32           0           0                0\n"
            "     7             268           224          32           0                0\n"
            "     8             235           256         160           0                0\n"
            "\n"
            "loader, 7 ranks: 32 samples are read twice per epoch (0.053 %); drop_last would drop 192 instead; no "
            "batch_size near 32 divides evenly\n"
            "loader, 8 ranks: 160 samples are read twice per epoch (0.27 %); drop_last would drop 96 instead; "
            "batch_size 30 divides evenly\n");
}

// One small case per kind. The numbers are chosen so that the singular, the plural and ranges of ranks all occur.
TEST(DataCheckTest, EveryKindOfFindingComesWithItsRemedy) {
  using Found = std::vector<std::string>;
  EXPECT_EQ(findings({"--length", "100", "--batch-size", "4", "--no-even-batches", "--ranks", "3,7"}),
            Found({"3 uneven_steps: ranks 1-2 take 8 steps, the other 9: a collective in step 9 would hang; set "
                   "even_batches: true or use join_uneven_inputs; "
                   "no batch_size near 4 divides evenly",
                   "7 uneven_steps: ranks 4-6 take 3 steps, the others 4: a collective in step 4 would hang; set "
                   "even_batches: true or use join_uneven_inputs; "
                   "no batch_size near 4 divides evenly"}));
  EXPECT_EQ(
      findings({"--length", "22", "--batch-size", "4", "--no-even-batches", "--ranks", "2"}),
      Found({"2 short_batch: the last batch of rank 1 has 2 samples, earlier batches have 4: gather requires equal "
             "shapes; set even_batches: true or use "
             "pad_across_processes; no batch_size near 4 divides evenly"}));
  EXPECT_EQ(findings({"--length", "10", "--batch-size", "4", "--drop-last", "--ranks", "2,4"}),
            Found({"2 dropped: 2 samples are not read in an epoch (20 %); drop_last: false would read 6 twice instead; "
                   "batch_size 5 divides evenly",
                   "4 no_batch: 10 samples are fewer than one step of 16, and drop_last drops them: no rank gets a "
                   "batch; set drop_last: false, or "
                   "batch_size 2 or less"}));
  EXPECT_EQ(findings({"--length", "3", "--batch-size", "4", "--ranks", "4"}),
            Found({"4 duplicated: 3 samples are read 16 times in all per epoch; one step of 16 needs more samples "
                   "than there are; no batch_size near 4 divides evenly"}));
  EXPECT_EQ(findings({"--length", "9", "--batch-size", "4", "--ranks", "2", "--iterable"}),
            Found({"2 duplicated: 1 sample is read twice per epoch (11 %); drop_last would drop 1 instead; no "
                   "batch_size near 4 divides evenly"}));
  EXPECT_EQ(findings({"--length", "0", "--batch-size", "4", "--ranks", "2"}),
            Found({"2 no_batch: the dataset is empty, so no rank gets a batch; check length or the data"}));
  EXPECT_EQ(findings({"--length", "24", "--batch-size", "4", "--ranks", "1-3,6"}), Found());
}

// A batch of 4 cannot be split among 3 ranks. The other numbers of ranks must still be checked.
TEST(DataCheckTest, AnErrorForSomeNumbersOfRanksIsAFinding) {
  const auto run = data_check({"--length", "24", "--batch-size", "4", "--split-batches", "--ranks", "2-3", "--json"});
  const auto of_ranks = Json::parse(run.output)["loaders"][0]["ranks"];
  EXPECT_EQ(of_ranks[0],
            Json::parse(R"({"ranks":2,"steps_min":6,"steps_max":6,"samples_per_step":4,"duplicated":0,"dropped":0,
                                         "ranks_without_batch":0,"findings":[]})"));
  EXPECT_EQ(of_ranks[1]["findings"][0]["kind"], "error");
  EXPECT_FALSE(of_ranks[1].contains("steps_min"));
}

// CI jobs use --strict to stop on a configuration that would hang or repeat samples.
TEST(DataCheckTest, StrictMakesAFindingTheExitCode) {
  EXPECT_EQ(data_check({"--length", "24", "--batch-size", "4", "--ranks", "4"}).exit_code, 0);
  EXPECT_EQ(data_check({"--length", "24", "--batch-size", "4", "--ranks", "4", "--strict"}).exit_code, 1);
  EXPECT_EQ(data_check({"--length", "24", "--batch-size", "4", "--ranks", "3", "--strict"}).exit_code, 0);
}

// Training and evaluation have different lengths and batch sizes, and either may lose samples.
TEST(DataCheckTest, AnExperimentsTwoLoadersAreChecked) {
  const TemporaryFolder folder;
  const auto file = folder.write(
      "run.yaml",
      "task: fashion_mnist\nlimit: 100\neval_limit: 30\nmodel: {name: mlp}\noptimizer: {name: sgd, lr: 0.1}\n"
      "batch_size: 8\neval_batch_size: 6\nepochs: 1\nseed: 1\ndataloader_config: {split_batches: true}\n");
  const auto run = data_check({file, "--ranks", "2,4", "--json", "--set", "drop_last=true"});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto loaders = Json::parse(run.output)["loaders"];
  EXPECT_EQ(loaders[0]["name"], "training");
  EXPECT_EQ(loaders[0]["ranks"][1]["dropped"], 4);
  EXPECT_EQ(loaders[1]["name"], "evaluation");
  EXPECT_EQ(loaders[1]["ranks"][0]["steps_max"], 5);
  EXPECT_EQ(loaders[1]["ranks"][1]["findings"][0]["kind"], "error");
}

// 4096 lists of 244,000 indices would need 8 GB, so only a closed form passes within the time limit.
TEST(DataCheckTest, AThousandMillionSamplesOn4096RanksAreCountedWithoutListingThem) {
  const auto run =
      data_check({"--length", "1000000007", "--batch-size", "32", "--ranks", "1-4096", "--no-even-batches"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("  4096    7629 or 7630        131072           0           0                0\n"));
}

// Nothing is printed for the valid number 2, so that scripts do not read half an answer.
TEST(DataCheckTest, AllProblemsAreInOneMessageAndExitTwo) {
  const auto run = data_check({"--ranks", "0,x-3,7-,5-4,4097,2", "--set", "a=b", "--length", "-1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output, IsEmpty());
  for (const auto* problem :
       {"length: expected 0 or more, got -1", "'0' is no", "'x-3' is no", "'7-' is no", "'5-4' is no", "'4097' is no",
        "--batch-size is missing", "--set: needs an experiment file"}) {
    EXPECT_THAT(run.error, HasSubstr(problem));
  }
}

// Exit code 1 is reserved for findings.
TEST(DataCheckTest, WrongUsageIsExitTwo) {
  for (const auto& options :
       std::vector<std::vector<std::string>>{{},
                                             {"/no/such/file.yaml"},
                                             {source("configs/train/fashion_mnist.yaml"), "--length", "3"},
                                             {"--length", "x", "--batch-size", "1"},
                                             {"--unknown"},
                                             {"--length", "5", "--batch-size", "0"},
                                             {"--length", "5", "--batch-size", "1", "--iterable", "--shuffle"},
                                             {"--length", "5", "--batch-size", "1", "--ranks", ""}}) {
    const auto run = data_check(options);
    EXPECT_EQ(run.exit_code, 2) << ::testing::PrintToString(options);
    EXPECT_THAT(run.error, Not(IsEmpty()));
  }
}

// A misspelled command gets the list of commands.
TEST(DataCheckTest, CommandsThatAreNotBuiltNameWhatIs) {
  for (const auto* command : {"lunch", "no-command"}) {
    const auto run = run_command({bin("accel"), command});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.error, AllOf(HasSubstr(command), HasSubstr("unknown command"), HasSubstr("data-check")));
  }
  EXPECT_EQ(run_command({bin("accel")}).exit_code, 2);
  const auto help = run_command({bin("accel"), "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("data-check"));
}

}  // namespace
}  // namespace accel::testing::data_check_test
