// sim-run predict and sim-run layouts with described runs, as a user calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::predict_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::string kPublished = source("configs/sim/published_runs.yaml");
const std::string kHead =
    "systems: {cluster: {gpu: h100_sxm5_80, network_gb_per_s_per_node: 400}}\n"
    "models: {m: {layers: 80, hidden: 8192, heads: 64, kv_heads: 8, head_dim: 128, ffn: 28672, activation: swiglu, "
    "vocab: "
    "128256}}\n"
    "runs:\n";
const std::string kGood =
    "- {id: good, model: m, system: cluster, gpus: 64, tp: 8, sp: true, pp: 4, dp: 2, seq: 4096, gbs: 128, zero: 1, "
    "recompute: full, attention: flash}\n";
const std::string kBad = "- {id: bad, model: m, system: cluster, gpus: 64, tp: 3, dp: 2, seq: 4096, gbs: 128}\n";

class PredictCommandTest : public LaunchFixture {
 protected:
  CommandResult predict(const std::string& text, Words options = {}) {
    options.insert(options.begin(), {bin("sim-run"), "predict", folder_.write("runs.yaml", text)});
    return run_command(options);
  }
  static std::vector<Json> lines(const std::string& output) {
    std::vector<Json> all;
    for (const auto& line : lines_of(output)) all.push_back(Json::parse(line));
    return all;
  }
};

TEST_F(PredictCommandTest, JsonHasALineForEachRunAndPartsThatAddUp) {
  const auto run = run_command({bin("sim-run"), "predict", "--json", kPublished});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  const auto answers = lines(run.output);
  ASSERT_EQ(answers.size(), 20U);
  for (const auto& answer : answers) {
    double sum = 0;
    for (const auto* part : {"compute", "recompute", "tensor_parallel", "data_parallel", "pipeline_bubble",
                             "context_parallel", "expert_parallel", "optimizer", "other"})
      sum += answer["breakdown"][part].get<double>();
    EXPECT_NEAR(sum / answer["step_seconds"].get<double>(), 1, 1e-9) << answer["id"];
    EXPECT_TRUE(answer["memory_bytes"].is_number_integer());
    EXPECT_TRUE(answer["fits"].is_boolean());
    EXPECT_TRUE(answer["assumptions"].is_array());
    EXPECT_TRUE(answer.contains("error"));
  }
  EXPECT_THAT(run.error, HasSubstr("20 runs with published times: error "));
}

TEST_F(PredictCommandTest, ThePageOfPublishedRunsHasTodaysNumbers) {
  const auto run =
      run_command({"/usr/bin/python3", "-B", source("reports/predictions/write_report.py"), bin("sim-run"), "--check"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
}

TEST_F(PredictCommandTest, TextHasTheSharesOfTheParts) {
  const auto run = predict(kHead + kGood);
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, AllOf(HasSubstr("good"), HasSubstr(" GB"), HasSubstr("compute "), HasSubstr("recompute "),
                                HasSubstr("pipeline_bubble "), HasSubstr("assumed: framework megatron_core"),
                                Not(HasSubstr("published"))));
}

TEST_F(PredictCommandTest, WithJsonARunThatCannotBeComputedDoesNotStopTheNext) {
  const auto run = predict(kHead + kBad + kGood, {"--json"});
  EXPECT_EQ(run.exit_code, 1);
  const auto answers = lines(run.output);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0]["id"], "bad");
  EXPECT_THAT(answers[0]["error_message"].get<std::string>(),
              AllOf(HasSubstr("are 6 GPUs; expected 64"), HasSubstr("3 does not divide the 64 heads")));
  EXPECT_EQ(answers[0].size(), 2U);
  EXPECT_GT(answers[1]["step_seconds"].get<double>(), 0);
}

TEST_F(PredictCommandTest, WithoutJsonAllProblemsAreOneError) {
  const auto run = predict(kHead + kBad + kGood + "- {id: worse, model: n, system: moon, gpus: 8, seq: 1, gbs: -8}\n");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.output, "");
  EXPECT_THAT(run.error, AllOf(HasSubstr("bad:"), HasSubstr("worse:"), HasSubstr("expected one of cluster"),
                               HasSubstr("expected one of m"), HasSubstr("gbs")));
}

TEST_F(PredictCommandTest, AFileWithoutASectionCannotBeRead) {
  for (const auto& options : {Words{}, Words{"--json"}}) {
    const auto run = predict("models: {}\nruns: []\n", options);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.error, HasSubstr("systems"));
  }
  EXPECT_EQ(run_command({bin("sim-run"), "predict", folder_.path("absent.yaml")}).exit_code, 2);
}

TEST_F(PredictCommandTest, AThousandRunsOnSixteenThousandGpusArePredicted) {
  auto text = kHead;
  for (int run = 0; run < 1200; ++run)
    text += fmt::format(
        "- {{id: r{}, model: m, system: cluster, gpus: 16384, tp: 8, sp: true, pp: 16, vpp: 5, dp: 128, seq: 8192, "
        "gbs: "
        "2048, zero: 1, schedule: interleaved_1f1b}}\n",
        run);
  const auto run = predict(text, {"--json"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(lines_of(run.output).size(), 1200U);
}

TEST_F(PredictCommandTest, ConstantsOfAFileReplaceTheShippedOnes) {
  const auto hardware = folder_.write("hardware.yaml", "gpus: {h100_sxm5_80: {peak_bf16: 98.9, memory_gb: 1}}\n");
  const auto shipped = lines(predict(kHead + kGood, {"--json"}).output).front();
  const auto mine = lines(predict(kHead + kGood, {"--json", "--hardware", hardware}).output).front();
  EXPECT_GT(mine["step_seconds"].get<double>(), 3 * shipped["step_seconds"].get<double>());
  EXPECT_EQ(mine["fits"], false);
  const auto wrong = folder_.write("wrong.yaml", "latencies: {kernel: fast}\n");
  EXPECT_EQ(predict(kHead + kGood, {"--hardware", wrong}).exit_code, 2);
}

TEST_F(PredictCommandTest, LayoutsOfADescribedRunAreRanked) {
  const auto file = folder_.write("runs.yaml", kHead + kGood);
  const auto run = run_command({bin("sim-run"), "layouts", "--json", "--ranks", "512", file});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  const auto answer = Json::parse(run.output);
  EXPECT_EQ(answer["gpus"], 512);
  ASSERT_EQ(answer["layouts"].size(), 10U);
  double before = 0;
  for (const auto& layout : answer["layouts"]) {
    EXPECT_EQ(layout["dp"].get<int>() * layout["tp"].get<int>() * layout["cp"].get<int>() * layout["pp"].get<int>(),
              512);
    EXPECT_GE(layout["step_seconds"].get<double>(), before);
    before = layout["step_seconds"];
  }
  EXPECT_GT(answer["do_not_fit"].get<int>(), 0);
}

TEST_F(PredictCommandTest, AModelThatFitsNowhereIsAFailure) {
  const auto file = folder_.write("runs.yaml", kHead + kGood);
  const auto run = run_command({bin("sim-run"), "layouts", "--ranks", "1", file});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("no layout fits: the least needs"));
}

// The layout of a description has no meaning for the search.
TEST_F(PredictCommandTest, ADescriptionNeedsNoLayout) {
  const auto text =
      kHead + "- {id: open, model: m, system: cluster, gpus: 16384, tp: 3, seq: 8192, gbs: 2048, attention: flash}\n";
  const auto run = run_command({bin("sim-run"), "layouts", folder_.write("runs.yaml", text)});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("tokens/s/GPU"));
  EXPECT_EQ(predict(text).exit_code, 2);
}

TEST_F(PredictCommandTest, GpusThatNoLayoutDividesAreAFailure) {
  const auto file = folder_.write("runs.yaml", kHead + kGood);
  const auto run = run_command({bin("sim-run"), "layouts", "--ranks", "1000003", file});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("no layout divides"));
  EXPECT_EQ(run_command({bin("sim-run"), "layouts", "--ranks", "2.5", file}).exit_code, 2);
}

TEST_F(PredictCommandTest, AnUnknownRunIsAnError) {
  const auto run = run_command({bin("sim-run"), "layouts", "--run", "x", kPublished});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, AllOf(HasSubstr("--run x"), HasSubstr("sc21-t1-18B")));
}

}  // namespace
}  // namespace accel::testing::predict_command_test
