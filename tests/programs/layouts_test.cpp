// sim-run layouts: ranks the layouts of a mesh by what they cost, and names those that do not fit.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/programs/support/bad_input.hpp"

namespace accel::testing::layouts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class LayoutsTest : public ExperimentFiles {
 protected:
  static std::string network() { return source("configs/sim/networks/nvlink_8.yaml"); }
  static std::string char_gpt() { return source("configs/train/char_gpt.yaml"); }
  static CommandResult layouts(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "layouts");
    return sim_run(arguments);
  }
  static Json json_of(int ranks) {
    const auto run = layouts({"--ranks", std::to_string(ranks), "--network", network(), "--json", char_gpt()});
    EXPECT_EQ(run.exit_code, 0) << run.error;
    return Json::parse(run.output, nullptr, /*allow_exceptions=*/false);
  }
};

TEST_F(LayoutsTest, EveryLayoutIsRankedOrHasAReason) {
  const auto json = json_of(4);
  std::vector<std::string> fitting;
  double before = 0;
  for (const auto& layout : json["layouts"]) {
    fitting.push_back(layout["layout"]);
    EXPECT_GE(layout["step_seconds"].get<double>(), before);
    EXPECT_GT(layout["compute_seconds"].get<double>(), 0);
    before = layout["step_seconds"];
    std::int64_t sum = 0;
    for (const auto& [kind, bytes] : layout["memory"].items()) sum += bytes.get<std::int64_t>();
    // The kinds have their peaks at different times, and scratch memory is of no kind.
    EXPECT_GT(layout["memory_bytes"].get<double>(), 0.5 * static_cast<double>(sum));
    EXPECT_LT(layout["memory_bytes"].get<double>(), 1.5 * static_cast<double>(sum));
  }
  EXPECT_THAT(fitting,
              ::testing::UnorderedElementsAre("dp_replicate 4", "dp_shard 4", "cp 4", "sp 4", "tp 4",
                                              "dp_replicate 2 x dp_shard 2", "dp_replicate 2 x cp 2",
                                              "dp_replicate 2 x sp 2", "dp_replicate 2 x tp 2", "dp_shard 2 x cp 2",
                                              "dp_shard 2 x sp 2", "dp_shard 2 x tp 2", "cp 2 x tp 2", "sp 2 x tp 2"));
  ASSERT_EQ(json["problems"].size(), 2);
  for (const auto& problem : json["problems"]) {
    EXPECT_THAT(problem["reason"].get<std::string>(), HasSubstr("no layer of the model is divided over these ranks"));
  }
  EXPECT_EQ(json["problems"][0]["layouts"].size() + json["problems"][1]["layouts"].size(), 6);
}

// By formulas, with pipelines, in a moment for any number of GPUs.
TEST_F(LayoutsTest, OnGpusTheLayoutsOfALanguageModelIncludePipelines) {
  const auto run = layouts({"--ranks", "1024", "--gpu", "h100_sxm5_80", "--best", "1000", "--json", "--set",
                            "model.layers=16", "--set", "batch_size=8", char_gpt()});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto json = Json::parse(run.output);
  EXPECT_EQ(json["gpus"], 1024);
  bool has_pipeline = false, has_tensor_parallelism = false;
  for (const auto& layout : json["layouts"]) {
    has_pipeline = has_pipeline || layout["pp"] > 1;
    has_tensor_parallelism = has_tensor_parallelism || layout["tp"] > 1;
  }
  EXPECT_TRUE(has_pipeline);
  EXPECT_TRUE(has_tensor_parallelism);
  EXPECT_THAT(json["assumptions"].dump(), HasSubstr("no mixed precision"));
}

TEST_F(LayoutsTest, WrongChoicesOfGpusAreErrors) {
  EXPECT_THAT(layouts({"--gpu", "tpu", char_gpt()}).error, HasSubstr("--gpu tpu: expected one of a100_sxm4_40"));
  EXPECT_THAT(layouts({"--gpu", "gb200", "--network", network(), char_gpt()}).error, HasSubstr("cannot be combined"));
  const auto images = layouts({"--gpu", "gb200", source("configs/train/fashion_mnist.yaml")});
  EXPECT_EQ(images.exit_code, 2);
  EXPECT_THAT(images.error, HasSubstr("has no description; expected gpt"));
}

// Of two layouts of which one is better in both, only that one is marked, and some layout is the fastest.
TEST_F(LayoutsTest, LayoutsThatNoOtherBeatsAreMarked) {
  const auto json = json_of(4);
  EXPECT_EQ(json["layouts"][0]["best"], true);
  const auto& all = json["layouts"];
  for (const auto& one : all) {
    const bool is_beaten = std::any_of(all.begin(), all.end(), [&](const auto& other) {
      return other["step_seconds"] <= one["step_seconds"] && other["memory_bytes"] < one["memory_bytes"];
    });
    EXPECT_EQ(one["best"] == true, !is_beaten) << one.dump();
  }
}

TEST_F(LayoutsTest, ItsCommandTrainsUnderTheFirstLayout) {
  auto command = json_of(8)["command"].get<std::string>();
  ASSERT_TRUE(command.starts_with("sim-run ")) << command;
  command.replace(0, 7, bin("sim-run"));
  const auto run = run_command({"/bin/sh", "-c", command + " --max-steps 4 --set sample="});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("\"ranks\":8"));
}

TEST_F(LayoutsTest, ATableAndAPageHaveTheSameLayouts) {
  const auto run = layouts({"--ranks", "4", "--network", network(), "--report", folder_.path("page"), char_gpt()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(
      run.output,
      AllOf(HasSubstr("memory per rank"), HasSubstr("dp_shard 2 x tp 2 "), HasSubstr("14 layouts fit, 6 do not fit\n"),
            HasSubstr("     5  prepare: parallelism_config has ep_size 2, and no"), HasSubstr("To run the first: ")));
  std::ifstream in(folder_.path("page/index.html"));
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(page, AllOf(HasSubstr("dp_shard 2 x tp 2"), HasSubstr("14 layouts fit, 6 do not fit"),
                          HasSubstr("no layer of the model is divided"), HasSubstr("char_gpt.yaml")));
}

// A model without divided layers: only the ranks' samples differ.
TEST_F(LayoutsTest, AModelWithoutDividedLayersHasDataParallelLayoutsOnly) {
  const auto run = layouts({"--ranks", "2", "--network", network(), good()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("2 layouts fit, 4 do not fit"), HasSubstr("dp_replicate 2 "), HasSubstr("dp_shard 2 "),
                    HasSubstr("tp_size 2, and no layer of the model is divided")));
}

// A program of the user: its layouts come through the environment.
TEST_F(LayoutsTest, AProgramIsRankedAndItsCommandRuns) {
  const auto run = layouts({"--ranks", "4", "--network", network(), "--axes", "dp_replicate,tp", "--json", "--",
                            bin("proved_training"), "none"});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto json = Json::parse(run.output);
  std::vector<std::string> fitting;
  for (const auto& layout : json["layouts"]) {
    fitting.push_back(layout["layout"]);
    EXPECT_GT(layout["step_seconds"].get<double>(), layout["compute_seconds"].get<double>());
    EXPECT_GT(layout["memory_bytes"].get<std::int64_t>(), 0);
  }
  EXPECT_THAT(fitting, ::testing::UnorderedElementsAre("dp_replicate 4", "dp_replicate 2 x tp 2", "tp 4"));
  auto command = json["command"].get<std::string>();
  const auto at = command.find("sim-run ");
  ASSERT_NE(at, std::string::npos) << command;
  const auto again = run_command({"/bin/sh", "-c", command.replace(at, 7, bin("sim-run"))});
  EXPECT_EQ(again.exit_code, 0) << again.error;
}

TEST_F(LayoutsTest, TheErrorOfAProgramIsTheReason) {
  const auto run =
      layouts({"--ranks", "3", "--network", network(), "--axes", "tp", "--", bin("proved_training"), "none"});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("0 layouts fit, 1 do not fit"), HasSubstr("does not divide into 3 equal parts")));
}

TEST_F(LayoutsTest, WrongUsageIsRefusedWithAllProblems) {
  expect_refused(layouts({"--ranks", "0", "--report", "/dev/null/page"}),
                 AllOf(HasSubstr("--ranks: 0 ranks"), HasSubstr("--network: missing"), HasSubstr("--report"),
                       HasSubstr("expected an experiment file or `-- PROGRAM")));
  expect_refused(layouts({"--ranks", "4", "--network", network(), "--set", "epochs=1", "--", "python3", "train.py"}),
                 AllOf(HasSubstr("not one in Python"), HasSubstr("only experiments support these options")));
  expect_refused(layouts({"--ranks", "64", "--network", network(), bad("task: nothing\n")}),
                 AllOf(HasSubstr("the topology holds 8 ranks, but there are 64"), HasSubstr("bad.yaml:1: task")));
}

}  // namespace
}  // namespace accel::testing::layouts_test
