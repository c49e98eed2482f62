// Descriptions of runs: what is read, what is assumed, and that every problem of a run is reported at once.
#include "sim/predict/training_run.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/sim/predict/described_run.hpp"

namespace accel::predict::training_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kHead =
    "sources: {paper: {title: pytorch/torchtitan benchmarks}}\n"
    "systems: {cluster: {gpu: h100_sxm5_80, network_gb_per_s_per_node: 400}}\n"
    "models: {m: {layers: 8, hidden: 1024, heads: 8, ffn: 4096, activation: swiglu, vocab: 1000},\n"
    "         mixture: {layers: 8, hidden: 1024, heads: 8, kv_heads: 2, ffn: 4096, vocab: 1000, experts: 16, top_k: 2, "
    "moe_ffn: 512}}\n"
    "runs:\n";

DescribedRun read(const std::string& run) { return accel::testing::read_text(kHead + "- " + run + "\n").front(); }

std::string problem_of_file(const std::string& text) {
  try {
    (void)accel::testing::read_text(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(TrainingRunTest, KeysOfARunAreRead) {
  const auto [run, problem] = read(
      "{id: a, source: paper, model: m, system: cluster, gpus: 64, seq: 4096, gbs: 256, mbs: 2, microbatches: 16, dp: "
      "8, tp: 2, sp: true, cp: 1, pp: 4, vpp: 2, zero: 1, zero_group: 4, schedule: interleaved_1f1b, precision: fp8, "
      "recompute: selective, attention: flash, step_seconds: 2.5}");
  EXPECT_EQ(problem, "");
  EXPECT_EQ(run.id, "a");
  EXPECT_EQ(run.framework, "torchtitan");
  EXPECT_EQ(run.model.head_dim, 128);
  EXPECT_EQ(run.model.kv_heads, 8);
  EXPECT_TRUE(run.model.is_gated);
  EXPECT_FALSE(run.model.is_tied);
  EXPECT_EQ(run.system.network_bytes_per_second_per_node, 400e9);
  EXPECT_EQ(run.tp, 2);
  EXPECT_TRUE(run.sp);
  EXPECT_EQ(run.vpp, 2);
  EXPECT_EQ(run.zero_group, 4);
  EXPECT_EQ(run.precision, Precision::kFp8);
  EXPECT_TRUE(run.recompute.attention);
  EXPECT_EQ(run.attention, AttentionKernel::kFlash2);
  EXPECT_EQ(run.step_seconds, 2.5);
}

TEST(TrainingRunTest, SizesThatFollowFromOthersMayBeAbsent) {
  const auto [run, problem] = read("{model: m, system: cluster, gpus: 32, tp: 2, pp: 2, seq: 128, gbs: 64, mbs: 2}");
  EXPECT_EQ(problem, "");
  EXPECT_EQ(run.dp, 8);
  EXPECT_EQ(run.micro_batches, 4);
  EXPECT_EQ(run.id, "run 1");
  EXPECT_EQ(run.framework, "megatron_core");
  EXPECT_THAT(run.assumptions, ::testing::Contains(HasSubstr("framework megatron_core")));
}

TEST(TrainingRunTest, AllProblemsOfARunAreReported) {
  const auto [run, problem] = read(
      "{model: absent, system: nowhere, gpus: 48, seq: -1, gbs: 64, dp: 8, tp: 3, precision: int8, zero: 4, framework: "
      "mine}");
  EXPECT_THAT(problem, AllOf(HasSubstr("runs[0].model"), HasSubstr("absent"), HasSubstr("expected one of m, mixture")));
  EXPECT_THAT(problem, AllOf(HasSubstr("runs[0].system"), HasSubstr("expected one of cluster")));
  EXPECT_THAT(problem, HasSubstr("dp 8 x tp 3 x cp 1 x pp 1 are 24 GPUs; expected 48"));
  EXPECT_THAT(problem, HasSubstr("runs[0].seq"));
  EXPECT_THAT(problem, HasSubstr("runs[0].precision"));
  EXPECT_THAT(problem, HasSubstr("runs[0].zero"));
  EXPECT_THAT(problem, HasSubstr("runs[0].framework"));
}

TEST(TrainingRunTest, ALayoutMustDivideTheModel) {
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 16, dp: 1, tp: 16, seq: 128, gbs: 4}").problem,
              HasSubstr("16 does not divide the 8 heads"));
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 16, dp: 1, pp: 16, seq: 128, gbs: 4}").problem,
              HasSubstr("expected at most the 8 layers"));
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 3, cp: 3, seq: 128, gbs: 4}").problem,
              HasSubstr("3 does not divide the 128 tokens"));
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 4, ep: 2, seq: 128, gbs: 4}").problem,
              HasSubstr("the model has no experts"));
  EXPECT_THAT(read("{model: mixture, system: cluster, gpus: 12, ep: 3, seq: 128, gbs: 12}").problem,
              HasSubstr("3 does not divide the 16 experts"));
  EXPECT_THAT(read("{model: mixture, system: cluster, gpus: 4, ep: 8, seq: 128, gbs: 4}").problem,
              HasSubstr("8 does not divide the 4 ranks"));
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 4, seq: 128, gbs: 64, mbs: 1, microbatches: 8}").problem,
              HasSubstr("are 32 sequences; expected 64"));
}

TEST(TrainingRunTest, ARunWithAProblemDoesNotStopTheNext) {
  const auto runs =
      accel::testing::read_text(kHead +
                                "- {id: bad, model: m, system: cluster, gpus: 3, dp: 2, seq: 128, gbs: 6}\n"
                                "- {id: good, model: m, system: cluster, gpus: 3, seq: 128, gbs: 6}\n");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_THAT(runs[0].problem, HasSubstr("runs.yaml:"));
  EXPECT_EQ(runs[1].problem, "");
}

TEST(TrainingRunTest, AFileWithoutASectionIsRefused) {
  EXPECT_THAT(problem_of_file("models: {}\nsystems: {}\n"), HasSubstr("runs"));
  EXPECT_THAT(problem_of_file("runs: []\n"), AllOf(HasSubstr("models"), HasSubstr("systems")));
  EXPECT_THAT(
      problem_of_file("models: {m: {layers: -2, hidden: many, heads: 4, ffn: 8, vocab: 1}}\nsystems: {}\nruns: []\n"),
      AllOf(HasSubstr("models.m.layers"), HasSubstr("models.m.hidden")));
}

struct RecomputeCase {
  std::string text;
  Recomputation expected;
};

TEST(TrainingRunTest, RecomputationIsReadFromText) {
  const auto of = [](const std::string& text) {
    return read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, recompute: " + text + "}").run.recompute;
  };
  EXPECT_FALSE(of("none").is_full());
  EXPECT_EQ(of("full").layers, 1);
  EXPECT_EQ(of("full 2 of 8 layers").layers, 0.25);
  EXPECT_TRUE(of("selective").attention);
  EXPECT_EQ(of("selective_op").products, 0.5);
  EXPECT_TRUE(of("layernorm+moe_act").norms);
  EXPECT_TRUE(of("layernorm+moe_act").activation);
  EXPECT_FALSE(of("layernorm+moe_act").attention);
  EXPECT_GT(of("mlp").products, 0);
}

TEST(TrainingRunTest, UnknownRecomputationIsAnAssumption) {
  const auto [run, problem] = read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, recompute: some of it}");
  EXPECT_EQ(problem, "");
  EXPECT_THAT(run.assumptions, ::testing::Contains(HasSubstr("'some of it' is unknown")));
}

// Sums of the published descriptions, which state their own number of parameters.
TEST(TrainingRunTest, ParametersOfPublishedModelsAreThoseThatTheyState) {
  const auto runs = accel::testing::published_runs();
  ASSERT_EQ(runs.size(), 20U);
  for (const auto& [run, problem] : runs) {
    EXPECT_EQ(problem, "") << run.id;
    if (run.model.parameters) EXPECT_NEAR(run.model.total_parameters() / *run.model.parameters, 1, 0.07) << run.id;
  }
}

}  // namespace
}  // namespace accel::predict::training_run_test
