// sim-run pipeline, as a user calls it: the table, the proof, JSON, files of torch.distributed.pipelining, and wrong
// input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::pipeline_command_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

CommandResult pipeline(std::vector<std::string> options) {
  options.insert(options.begin(), {bin("sim-run"), "pipeline"});
  return run_command(options);
}

std::string contents(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(PipelineCommandTest, TheTableAndItsProofArePrinted) {
  const auto run = pipeline({"--schedule", "1f1b", "--stages", "3", "--micro-batches", "4"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output,
            "1f1b: 3 stages on 3 ranks, 4 micro-batches\n"
            "rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n"
            "live activations at most: 3 2 1\n"
            "bubble: 33.33 % (costs 1,1,1)\n"
            "complete and free of deadlock (send capacity unbounded, receives eager)\n");
}

TEST(PipelineCommandTest, JsonHasThePlanAndItsProof) {
  const auto run = pipeline(
      {"--schedule", "zb_h1", "--stages", "4", "--ranks", "4", "--micro-batches", "8", "--costs", "1,1,1", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  const auto json = Json::parse(run.output);
  EXPECT_EQ(json["schedule"], "zb_h1");
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["micro_batches"], 8);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["problem"], "");
  EXPECT_EQ(json["cycle"], Json::array());
  EXPECT_DOUBLE_EQ(json["bubble"], 3.0 / (3 * 8 + 3));
  EXPECT_EQ(json["peak_activations"], Json({4, 4, 4, 4}));
  EXPECT_EQ(json["actions"].size(), 4U);
  EXPECT_EQ(json["actions"][3][0], "3RECV_F0");
}

TEST(PipelineCommandTest, ADeadlockHasExitCode1AndItsCycle) {
  const auto run = pipeline({"--schedule", "1f1b", "--stages", "4", "--micro-batches", "6", "--send-capacity", "0",
                             "--receives", "deferred", "--json"});
  EXPECT_EQ(run.exit_code, 1);
  const auto json = Json::parse(run.output);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["bubble"], nullptr);
  ASSERT_EQ(json["cycle"].size(), 2U);
  EXPECT_EQ(json["problem"],
            "deadlock: " + json["cycle"][0].get<std::string>() + ", " + json["cycle"][1].get<std::string>());
  EXPECT_THAT(json["cycle"][0].get<std::string>(),
              AllOf(HasSubstr("rank "), HasSubstr(" waits in "), HasSubstr("SEND_")));
}

// Gaps, messages, actions of FSDP and actions that run together, as torch writes them; quotes and blanks as a
// spreadsheet does.
TEST(PipelineCommandTest, FilesOfTorchAreRead) {
  const TemporaryFolder folder;
  const auto computations = folder.write("computations.csv", "0F0,,0F1,\"0B0\",0B1\n,1F0, 1B0 ,1F1,1B1\n");
  const auto read = pipeline({"--schedule", computations});
  EXPECT_EQ(read.exit_code, 0) << read.error << read.output;
  EXPECT_THAT(read.output, HasSubstr("rank 1: 1F0 1B0 1F1 1B1\n"));

  const auto messages = folder.write("messages.csv",
                                     "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
                                     "1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_EQ(pipeline({"--schedule", messages}).exit_code, 0);

  const auto written = folder.path("dualpipe.csv");
  EXPECT_EQ(pipeline({"--schedule", "dualpipe_v", "--stages", "4", "--micro-batches", "4", "--csv", written}).exit_code,
            0);
  EXPECT_THAT(contents(written), HasSubstr("(0F3;3B1)OVERLAP_F_B"));
  const auto again = folder.path("again.csv");
  EXPECT_EQ(pipeline({"--schedule", written, "--csv", again}).exit_code, 0);
  EXPECT_EQ(contents(again), contents(written));
  EXPECT_EQ(pipeline({"--schedule", written, "--csv", again, "--csv-messages"}).exit_code, 0);
  EXPECT_THAT(contents(again), HasSubstr("0F0,0SEND_F0,"));
}

TEST(PipelineCommandTest, WhatAFileLacksIsNamed) {
  const TemporaryFolder folder;
  const auto run = pipeline({"--schedule", folder.write("lost.csv", "0F0,0F1,0I0,0W0,0I1\n1F0,1B0,1F1,1B1,1B1\n"),
                             "--micro-batches", "2", "--json"});
  EXPECT_EQ(run.exit_code, 1) << run.error;
  EXPECT_EQ(Json::parse(run.output)["problem"], "0W1 is missing; 1B1 stands 2 times");
}

TEST(PipelineCommandTest, AllWrongCellsAreOneError) {
  const TemporaryFolder folder;
  const auto run = pipeline({"--schedule", folder.write("wrong.csv", "0F0,F1\n1F0,(1B0\n")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("wrong.csv: line 1: 'F1' is no action; expected "),
                               HasSubstr("line 2: '(1B0' is no action")));
}

// An empty line is a rank without actions, except at the end.
TEST(PipelineCommandTest, ALineIsARank) {
  const TemporaryFolder folder;
  const auto read = pipeline({"--schedule", folder.write("gap.csv", "0F0,0B0\n\n1F0,1B0\n\n")});
  EXPECT_THAT(read.output, AllOf(HasSubstr("rank 1: \n"), HasSubstr("rank 2: 1F0 1B0\n")));
}

TEST(PipelineCommandTest, NumbersThatAreTooLargeAreErrors) {
  const TemporaryFolder folder;
  const auto file = pipeline({"--schedule", folder.write("large.csv", "0F999999,999999F0\n")});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_THAT(file.error, HasSubstr("1000000 stages times 1000000 micro-batches; expected at most 10000000"));
  EXPECT_EQ(pipeline({"--schedule", "gpipe", "--stages", "100000", "--micro-batches", "100000"}).exit_code, 2);
  EXPECT_EQ(pipeline({"--schedule", folder.write("huge.csv", "0F99999999999999\n")}).exit_code, 2);
  EXPECT_EQ(pipeline({"--schedule", "gpipe", "--stages", "2", "--micro-batches", "2", "--costs", "inf,1,1"}).exit_code,
            2);
}

TEST(PipelineCommandTest, AllImpossibleSizesAreOneError) {
  const auto run = pipeline({"--schedule", "dualpipe_v", "--stages", "6", "--ranks", "2", "--micro-batches", "3"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.error,
            "sim-run: schedule dualpipe_v: 6 stages on 2 ranks; expected two stages per rank; 3 micro-batches for 6 "
            "stages; expected at "
            "least as many as stages\n");
  EXPECT_EQ(pipeline({"--schedule", "1f1b", "--stages", "0", "--micro-batches", "4"}).exit_code, 2);
  EXPECT_THAT(
      pipeline({"--schedule", "zigzag", "--stages", "4", "--send-capacity", "-1"}).error,
      AllOf(HasSubstr("--send-capacity: expected unbounded or a number"), HasSubstr("--micro-batches is missing"),
            HasSubstr("no schedule has the name 'zigzag'; expected gpipe, 1f1b")));
}

TEST(PipelineCommandTest, ThePictureShowsEachComputation) {
  const TemporaryFolder folder;
  const auto picture = folder.path("plan.svg");
  EXPECT_EQ(pipeline({"--schedule", "interleaved_1f1b", "--stages", "4", "--ranks", "2", "--micro-batches", "4",
                      "--plot", picture})
                .exit_code,
            0);
  const auto svg = contents(picture);
  for (const auto* title : {"<title>0F0, 0 to 1</title>", "<title>3B3, ", "<title>2F3, "})
    EXPECT_THAT(svg, HasSubstr(title));
}

}  // namespace
}  // namespace accel::testing::pipeline_command_test
