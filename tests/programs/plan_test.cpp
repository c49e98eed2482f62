// sim-run plan, as a user calls it: requests as JSON lines, flags, the table and the picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Runs `sim-run plan` with these options.
CommandResult plan(std::vector<std::string> options) {
  options.insert(options.begin(), {bin("sim-run"), "plan"});
  return run_command(options);
}

// The answers to requests in a file, one JSON object for each line.
std::vector<Json> answers(const std::string& requests) {
  const TemporaryFolder folder;
  const auto run = plan({"--requests", folder.write("requests.jsonl", requests)});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  std::vector<Json> lines;
  std::istringstream output(run.output);
  for (std::string line; std::getline(output, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(PlanTest, AnAnswerHoldsEveryRanksBatchesAndWhatBecameOfEverySample) {
  // Seven samples on two ranks give a padded tail, and skip_batches shortens epoch 0 only.
  const auto lines = answers(R"({"length":7,"batch_size":2,"ranks":2,"skip_batches":1,"epochs":2})");
  ASSERT_EQ(lines.size(), 1);
  const auto& epochs = lines[0]["epochs"];
  EXPECT_EQ(epochs[0], Json::parse(R"({"ranks":[[[4,5]],[[6,0]]],"end_of_dataloader":[true],)"
                                   R"("gathered_for_metrics":[[4,5,6]],"duplicated":[],"dropped":[]})"));
  EXPECT_EQ(epochs[1], Json::parse(R"({"ranks":[[[0,1],[4,5]],[[2,3],[6,0]]],"end_of_dataloader":[false,true],
                                       "gathered_for_metrics":[[0,1,2,3],[4,5,6]],"duplicated":[0],"dropped":[]})"));
}

// With an uneven end, gathering would hang in Accelerate, so there is no answer for it.
TEST(PlanTest, DroppedSamplesAreNamedAndUnevenEndsAreNotGathered) {
  const auto lines = answers(R"({"length":7,"batch_size":2,"ranks":2,"drop_last":true}
{"length":5,"batch_size":2,"ranks":2,"even_batches":false})");
  EXPECT_EQ(lines[0]["epochs"][0]["dropped"], Json({4, 5, 6}));
  EXPECT_EQ(lines[1]["epochs"][0]["ranks"], Json::parse("[[[0,1],[4]],[[2,3]]]"));
  EXPECT_TRUE(lines[1]["epochs"][0]["gathered_for_metrics"].is_null());
}

// The oracle sends thousands of requests at once; one bad line must not end the program.
TEST(PlanTest, AnErrorIsAnAnswerAndTheNextLineIsAnswered) {
  const auto lines = answers(R"({"length":4,"batch_size":3,"ranks":2,"split_batches":true}
{"length":4,"batch_size":1,"ranks":2,"split_batches":true,"iterable":true,"dispatch_batches":false}
no request
{"length":-1,"batch_size":"3","raks":2}
[1]

{"length":1,"batch_size":1,"ranks":1})");
  ASSERT_EQ(lines.size(), 7);
  // The class names are Python's, which the oracle compares.
  EXPECT_EQ(lines[0]["error"], "ValueError");
  EXPECT_EQ(lines[1]["error"], "ValueError");
  for (const int line : {2, 3, 4, 5}) EXPECT_EQ(lines[line]["error"], "ConfigError") << line;
  EXPECT_THAT(lines[3]["message"].get<std::string>(),
              AllOf(HasSubstr("length: expected 0 or more, got -1"), HasSubstr("batch_size: expected an integer"),
                    HasSubstr("ranks: missing"), HasSubstr("raks: unknown")));
  EXPECT_EQ(lines[6]["epochs"][0]["ranks"], Json::parse("[[[0]]]"));
}

// Every mode has its own code for the end of the data.
TEST(PlanTest, AnEmptySourceGivesNoBatchesInAnyMode) {
  std::string requests;
  for (const auto* iterable : {"true", "false"}) {
    for (const auto* dispatch : {"null", "true", "false"}) {
      requests += std::string(R"({"length":0,"batch_size":2,"ranks":3,"iterable":)") + iterable +
                  R"(,"dispatch_batches":)" + dispatch + "}\n";
    }
  }
  const auto lines = answers(requests);
  ASSERT_EQ(lines.size(), 6);
  for (const auto& line : lines) EXPECT_EQ(line["epochs"][0]["ranks"], Json::parse("[[],[],[]]")) << line;
}

// Products of sizes near 2^63 overflow, which is undefined behaviour and once looped forever in such planners.
TEST(PlanTest, NumbersAtTheEdgeOfTheirTypeAreAnswered) {
  const auto lines = answers(R"({"length":4,"batch_size":9223372036854775807,"ranks":1}
{"length":4,"batch_size":4611686018427387904,"ranks":4}
{"length":4,"batch_size":1,"ranks":1,"skip_batches":9000000000000000000}
{"length":4,"batch_size":1,"ranks":2,"iterable":true,"skip_batches":9000000000000000000})");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0]["epochs"][0]["ranks"], Json::parse("[[[0,1,2,3]]]"));
  EXPECT_EQ(lines[1]["error"], "ValueError");
  EXPECT_EQ(lines[2]["epochs"][0]["ranks"], Json::parse("[[]]"));
  EXPECT_EQ(lines[3]["epochs"][0]["ranks"], Json::parse("[[],[]]"));
}

// The form for people: the star marks samples that were added to fill up the last step.
TEST(PlanTest, FlagsMakeATableWithDuplicatesMarked) {
  const auto run = plan({"--length", "5", "--batch-size", "2", "--ranks", "2"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.output,
            "epoch 0: 2 ranks, 2 steps, 8 samples issued, 3 of them duplicates, 0 dropped\n"
            " step  rank 0  rank 1\n"
            "    0  0 1     2 3\n"
            "    1  4 0*    1* 2*\n");
}

// Two interfaces for one plan must not drift apart.
TEST(PlanTest, FlagsAreEquivalentToARequest) {
  const auto run = plan({"--length",
                         "21",
                         "--batch-size",
                         "4",
                         "--ranks",
                         "2",
                         "--shuffle",
                         "--seed",
                         "3",
                         "--data-seed",
                         "5",
                         "--no-even-batches",
                         "--split-batches",
                         "--drop-last",
                         "--dispatch-batches",
                         "true",
                         "--use-seedable-sampler",
                         "--skip-batches",
                         "1",
                         "--epochs",
                         "2",
                         "--json"});
  EXPECT_EQ(
      Json::parse(run.output),
      answers(R"({"length":21,"batch_size":4,"ranks":2,"shuffle":true,"seed":3,"data_seed":5,)"
              R"("even_batches":false,"split_batches":true,)"
              R"("drop_last":true,"dispatch_batches":true,"use_seedable_sampler":true,"skip_batches":1,"epochs":2})")
          .at(0))
      << run.error;
}

TEST(PlanTest, ThePictureHasABoxPerSampleAndRedOnesForDuplicates) {
  const TemporaryFolder folder;
  EXPECT_EQ(plan({"--length", "5", "--batch-size", "2", "--ranks", "2", "--plot", folder.path("plan.svg")}).exit_code,
            0);
  std::ifstream file(folder.path("plan.svg"));
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  const auto count = [&](const std::string& word) {
    int found = 0;
    for (auto at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<rect"), 8);
  EXPECT_EQ(count("stroke=\"red\""), 3);
}

TEST(PlanTest, WrongUsageIsExitTwo) {
  for (const auto& options :
       std::vector<std::vector<std::string>>{{"--length", "5"},
                                             {"--requests", "/no/such/file"},
                                             {"--requests", "/tmp"},
                                             {"--length", "x", "--batch-size", "1", "--ranks", "1"},
                                             {"--length", "5", "--batch-size", "3", "--ranks", "2", "--split-batches"},
                                             {"--requests", "f", "--length", "3"},
                                             {"--unknown"}}) {
    const auto run = plan(options);
    EXPECT_EQ(run.exit_code, 2) << options[0];
    EXPECT_FALSE(run.error.empty());
  }
}

}  // namespace
}  // namespace accel::testing::plan_test
