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

accel::testing::ReadRun read(const std::string& run) {
  return accel::testing::read_text(kHead + "- " + run + "\n").front();
}

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
              HasSubstr("ep 8 x etp 1 does not divide the 4 ranks"));
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
  EXPECT_THAT(problem_of_file("models: {}\nsystems: {}\nruns: 3\n"), HasSubstr("expected a list"));
}

// Of a wrong model only the runs that name it cannot be computed.
TEST(TrainingRunTest, AWrongModelIsAProblemOfItsRuns) {
  const auto runs = accel::testing::read_text(
      "systems: {cluster: {gpu: h100_sxm5_80, network_gb_per_s_per_node: not stated}, good: {gpu: gb200}}\n"
      "models: {bad: {layers: -2, hidden: many, heads: 4, ffn: 8, vocab: 1},\n"
      "         m: {layers: 8, hidden: 1024, heads: 8, ffn: 4096, vocab: 1000, new_key: 3}}\n"
      "sources: {a: text, b: {title: [1]}}\n"
      "runs:\n"
      "- {model: bad, system: good, gpus: 1, seq: 128, gbs: 4}\n"
      "- {model: m, system: cluster, gpus: 1, seq: 128, gbs: 4}\n"
      "- {model: m, system: good, gpus: 1, seq: 128, gbs: 4, source: b}\n"
      "- 7\n");
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_THAT(runs[0].problem, AllOf(HasSubstr("models.bad.layers"), HasSubstr("models.bad.hidden")));
  EXPECT_THAT(runs[1].problem, HasSubstr("network_gb_per_s_per_node"));
  EXPECT_EQ(runs[2].problem, "");
  EXPECT_THAT(runs[2].run.assumptions, ::testing::Contains(HasSubstr("new_key")));
  EXPECT_THAT(runs[3].problem, HasSubstr("expected a mapping"));
}

TEST(TrainingRunTest, KeysThatAreNotUsedAreAssumptions) {
  const auto [run, problem] = read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, recomputation: full}");
  EXPECT_EQ(problem, "");
  EXPECT_THAT(run.assumptions, ::testing::Contains(HasSubstr("recomputation")));
}

TEST(TrainingRunTest, NumbersHaveBounds) {
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 1, seq: 3000000000, gbs: 4}").problem, HasSubstr("10,000,000"));
  EXPECT_THAT(read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, vpp: 0}").problem, HasSubstr("vpp"));
}

TEST(TrainingRunTest, WordsAreThoseOfPublications) {
  const auto of = [](const std::string& keys) {
    const auto described = read("{model: m, system: cluster, gpus: 4, pp: 4, seq: 128, gbs: 16, " + keys + "}");
    EXPECT_EQ(described.problem, "") << keys;
    return described.run;
  };
  for (const auto* text : {"FlashAttention-2", "fa2", "flash_attention2 + RMS kernel"})
    EXPECT_EQ(of(std::string("attention: ") + text).attention, AttentionKernel::kFlash2) << text;
  for (const auto* text : {"cuDNN", "FlashAttention-3", "Flash", "not stated"})
    EXPECT_EQ(of(std::string("attention: ") + text).attention, AttentionKernel::kCudnn) << text;
  EXPECT_EQ(of("attention: megatron_fused_softmax").attention, AttentionKernel::kUnfused);
  EXPECT_EQ(of("precision: BF16").precision, Precision::kBf16);
  EXPECT_EQ(of("precision: FP8_cs").precision, Precision::kFp8);
  EXPECT_EQ(of("precision: NVFP4").precision, Precision::kFp4);
  EXPECT_EQ(of("schedule: GPipe").schedule, "gpipe");
  EXPECT_EQ(of("schedule: zb-1p").schedule, "zb_h1");
  EXPECT_EQ(of("schedule: zb-2p").schedule, "zb_h2");
  EXPECT_EQ(of("schedule: 1f1b, vpp: 2").schedule, "interleaved_1f1b");
}

// Chunks that the source does not state are as many as the layers allow.
TEST(TrainingRunTest, ChunksThatAreNotStatedAreAssumed) {
  const auto [run, problem] =
      read("{model: m, system: cluster, gpus: 4, pp: 4, vpp: null, schedule: 1f1b-i, seq: 128, gbs: 16}");
  EXPECT_EQ(problem, "");
  EXPECT_EQ(run.vpp, 2);
  EXPECT_THAT(run.assumptions, ::testing::Contains(HasSubstr("vpp 2")));
}

TEST(TrainingRunTest, RecomputationIsReadFromText) {
  const auto of = [](const std::string& text) {
    return read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, recompute: " + text + "}").run.recompute;
  };
  EXPECT_FALSE(of("none").is_full());
  EXPECT_EQ(of("full").layers, 1);
  EXPECT_EQ(of("full 2 of 8 layers").layers, 0.25);
  EXPECT_TRUE(of("selective").attention);
  EXPECT_TRUE(of("selective_op").is_by_operator());
  EXPECT_EQ(of("\"full (uniform, 1 layers)\"").layers, 1);
  EXPECT_EQ(of("\"full (block, 4 layers)\"").layers, 0.5);
  EXPECT_TRUE(of("[mlp, moe_act]").mlp);
  EXPECT_TRUE(of("mla_up_proj+mlp").latent_projections);
  EXPECT_FALSE(of("mla_up_proj+mlp").experts);
  EXPECT_TRUE(of("layernorm+moe_act").norms);
  EXPECT_TRUE(of("layernorm+moe_act").activation);
  EXPECT_FALSE(of("layernorm+moe_act").attention);
  EXPECT_TRUE(of("moe").experts);
}

TEST(TrainingRunTest, UnknownRecomputationIsAnAssumption) {
  const auto [run, problem] = read("{model: m, system: cluster, gpus: 1, seq: 128, gbs: 4, recompute: some of it}");
  EXPECT_EQ(problem, "");
  EXPECT_THAT(run.assumptions, ::testing::Contains(HasSubstr("'some of it': words that are not known")));
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
