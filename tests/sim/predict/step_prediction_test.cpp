// Predictions of steps: published runs, numbers that can be computed by hand, and memory.
#include "sim/predict/step_prediction.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "sim/predict/data_parallel.hpp"
#include "tests/sim/predict/described_run.hpp"

namespace accel::predict::step_prediction_test {
namespace {

using accel::testing::small_run;
using ::testing::Contains;
using ::testing::HasSubstr;

// The limits that reports/predicted_runs.md is far below: a change of the model that breaks a kind of run exceeds them.
TEST(StepPredictionTest, PublishedRunsArePredicted) {
  const auto hardware = default_hardware();
  std::vector<double> errors;
  for (const auto& [run, problem] : accel::testing::published_runs()) {
    const auto prediction = predict(run, hardware);
    errors.push_back(std::abs(prediction.step_seconds() / *run.step_seconds - 1));
    EXPECT_LT(errors.back(), 0.25) << run.id;
    EXPECT_TRUE(prediction.fits) << run.id << ": it ran";
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.05);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.12);
}

TEST(StepPredictionTest, OneGpuHasNoCommunication) {
  auto run = small_run();
  run.gpus = run.dp = 1;
  run.gbs = 8;
  const auto parts = predict(run, default_hardware()).breakdown;
  EXPECT_EQ(parts.tensor_parallel, 0);
  EXPECT_EQ(parts.data_parallel, 0);
  EXPECT_EQ(parts.pipeline_bubble, 0);
  EXPECT_EQ(parts.context_parallel, 0);
  EXPECT_EQ(parts.expert_parallel, 0);
  EXPECT_EQ(parts.recompute, 0);
  // 6 operations per parameter and token, and those of the attention, cannot run faster than the peak allows.
  const double tokens = run.gbs * run.seq;
  EXPECT_GT(parts.compute, 6 * run.model.total_parameters() * tokens / 312e12);
  EXPECT_LT(parts.compute, 6 * run.model.total_parameters() * tokens / 312e12 * 2.5);
}

TEST(StepPredictionTest, FullRecomputationRepeatsTheForwardPass) {
  auto run = small_run();
  const auto without = predict(run, default_hardware()).breakdown;
  run.recompute.layers = 1;
  const auto with = predict(run, default_hardware()).breakdown;
  EXPECT_DOUBLE_EQ(with.compute, without.compute);
  EXPECT_GT(with.recompute, 0.2 * without.compute);
  EXPECT_LT(with.recompute, 0.4 * without.compute);
}

// 1F1B of equal stages: (p - 1) / m of the work.
TEST(StepPredictionTest, TheBubbleOfEqualStagesIsThatOfTheSchedule) {
  auto run = small_run();
  run.model.vocab = 1;  // the ends of the model cost next to nothing
  run.gpus = run.pp = 4;
  run.dp = 1;
  run.gbs = run.micro_batches = 8;
  auto hardware = default_hardware();
  hardware.latencies.message_nvlink = 0;
  for (auto& [name, gpu] : hardware.gpus) gpu.nvlink_bus_bytes_per_second = 1e18;
  const auto parts = predict(run, hardware).breakdown;
  EXPECT_NEAR(parts.pipeline_bubble / (parts.compute + parts.recompute), 3.0 / 8, 0.01);
}

TEST(StepPredictionTest, AllReducesOfReplicasTakeTheTimeOfTheirRing) {
  auto run = small_run();
  auto hardware = default_hardware();
  const RunContext context(run, hardware, hardware.gpus.at("a100_sxm4_80"));
  const StageParameters parameters{.dense = 1e9};
  // 2 (n - 1) / n of the gradients in float32, at the bus rate of 234 GB/s, and some latency.
  const double ring = 2 * 7.0 / 8 * 4e9 / 234e9;
  EXPECT_NEAR(data_parallel_seconds(context, parameters, {}), ring, 0.001);
}

TEST(StepPredictionTest, ReplicasAcrossNodesShareTheCards) {
  auto run = small_run();
  run.gpus = run.dp = 16;
  run.gbs = 128;
  auto hardware = default_hardware();
  const RunContext context(run, hardware, hardware.gpus.at("a100_sxm4_80"));
  // Eight rings through eight cards of 25 GB/s, at 93 %.
  EXPECT_NEAR(context.collectives.gather(16e9, {.stride = 1, .size = 16}), 15e9 / (200e9 * 0.93), 0.001);
  // With 8 GPUs between its ranks, a group has one member per node, and one card.
  EXPECT_NEAR(context.collectives.gather(2e9, {.stride = 8, .size = 2}), 1e9 / (25e9 * 0.93), 0.001);
}

// Optimizer state of Adam in mixed precision: 2 + 4 + 12 bytes per parameter.
TEST(StepPredictionTest, MemoryCountsParametersGradientsAndState) {
  auto run = small_run();
  const double parameters = run.model.total_parameters();
  const auto whole = predict(run, default_hardware()).memory;
  EXPECT_DOUBLE_EQ(whole.parameters, 2 * parameters);
  EXPECT_DOUBLE_EQ(whole.gradients, 4 * parameters);
  EXPECT_DOUBLE_EQ(whole.optimizer, 12 * parameters);
  run.zero = 1;
  const auto sharded = predict(run, default_hardware()).memory;
  EXPECT_DOUBLE_EQ(sharded.optimizer, 12 * parameters / 8);
  EXPECT_DOUBLE_EQ(sharded.parameters, whole.parameters);
  EXPECT_DOUBLE_EQ(sharded.activations, whole.activations);
}

// Korthikanti et al., equation 2: s b h (34 + 5 a s / h) per layer, without a division.
TEST(StepPredictionTest, ActivationsOfALayerAreThoseOfThePaper) {
  auto run = small_run();
  run.model.vocab = 1;
  auto deeper = run;
  deeper.model.layers += 1;
  const auto bytes = [](const TrainingRun& of) { return predict(of, default_hardware()).memory.activations; };
  run.attention = deeper.attention = AttentionKernel::kUnfused;
  const double expected =
      run.seq * run.mbs * run.model.hidden * (34 + 5 * run.model.heads * run.seq / run.model.hidden);
  EXPECT_NEAR((bytes(deeper) - bytes(run)) / expected, 1, 1e-6);
}

// What a model without experts does not have costs nothing, over any number of ranks.
TEST(StepPredictionTest, ExpertsThatAreNotThereCostNothing) {
  const auto run = small_run();
  auto hardware = default_hardware();
  const RunContext context(run, hardware, hardware.gpus.at("a100_sxm4_80"));
  EXPECT_EQ(layer_parameters(run).experts, 0);
  EXPECT_EQ(context.collectives.gather(0, {.stride = 1, .size = 2048}), 0);
  EXPECT_EQ(context.collectives.all_reduce(0, {.stride = 1, .size = 2048}), 0);
}

// Stages gather once and keep what they gathered.
TEST(StepPredictionTest, ShardedStagesHoldTheirParametersForTheStep) {
  auto run = small_run();
  run.framework = "torchtitan";
  run.zero = 3;
  run.gpus = 16;
  run.pp = 2;
  const auto staged = predict(run, default_hardware()).memory;
  const double stage = run.model.total_parameters() / 2;
  EXPECT_GT(staged.parameters, 2 * 0.8 * stage);
  EXPECT_GT(staged.gradients, 2 * 0.8 * stage);
}

TEST(StepPredictionTest, FullRecomputationRepeatsTheExchangeOfTokens) {
  auto run = small_run();
  run.model.experts = 8;
  run.model.top_k = 2;
  run.model.moe_ffn = 4096;
  run.ep = 8;
  const double once = predict(run, default_hardware()).breakdown.expert_parallel;
  run.recompute.layers = 1;
  EXPECT_NEAR(predict(run, default_hardware()).breakdown.expert_parallel / once, 1.5, 1e-9);
}

predict::TrainingRun mixture() {
  auto run = small_run();
  run.model.experts = 8;
  run.model.top_k = 2;
  run.model.moe_ffn = 4096;
  run.ep = 4;
  return run;
}

// A rank with all experts has all tokens, and nothing to wait for.
TEST(StepPredictionTest, ExpertsOnEveryRankAreInBalance) {
  auto run = mixture();
  run.ep = 1;
  auto hardware = default_hardware();
  const double seconds = predict(run, hardware).breakdown.compute;
  hardware.efficiency.expert_imbalance = 2;
  EXPECT_EQ(predict(run, hardware).breakdown.compute, seconds);
  EXPECT_EQ(predict(run, hardware).breakdown.expert_parallel, 0);
}

// Groups that share a state exchange more than all ranks together would, and none of it without a shared state.
TEST(StepPredictionTest, GroupsOfSharedStateSumOverAllReplicas) {
  auto run = mixture();
  run.gpus = run.dp = 64;
  run.gbs = 512;
  const auto seconds = [&](int zero, double group) {
    auto other = run;
    other.zero = zero;
    other.zero_group = group;
    return predict(other, default_hardware()).breakdown.data_parallel;
  };
  EXPECT_EQ(seconds(0, 8), seconds(0, 0));
  EXPECT_GT(seconds(1, 8), seconds(1, 0));
}

TEST(StepPredictionTest, RecomputedPartsFreeTheirOwnActivations) {
  auto run = mixture();
  run.model.shared_ffn = 4096;
  const double kept = predict(run, default_hardware()).memory.activations;
  const auto without = [&](bool Recomputation::*part) {
    auto other = run;
    other.recompute.*part = true;
    return predict(other, default_hardware()).memory.activations;
  };
  for (const auto part :
       {&Recomputation::norms, &Recomputation::activation, &Recomputation::experts, &Recomputation::shared_experts})
    EXPECT_LT(without(part), kept);
  // The model has neither.
  EXPECT_EQ(without(&Recomputation::mlp), kept);
  EXPECT_EQ(without(&Recomputation::latent_projections), kept);
}

TEST(StepPredictionTest, ProductsThatAGpuLacksAreThoseOfTheNextPrecision) {
  auto run = small_run();
  const auto bf16 = predict(run, default_hardware());
  run.precision = Precision::kFp8;
  EXPECT_EQ(predict(run, default_hardware()).step_seconds(), bf16.step_seconds());
  EXPECT_EQ(predict(run, default_hardware()).memory.sum(), bf16.memory.sum());
}

TEST(StepPredictionTest, WhatDoesNotFitIsReported) {
  auto run = small_run();
  run.mbs = 64;
  run.gbs = 8 * 64;
  run.micro_batches = 1;
  EXPECT_FALSE(predict(run, default_hardware()).fits);
}

TEST(StepPredictionTest, AssumptionsAreListed) {
  auto run = small_run();
  run.system.network_bytes_per_second_per_node.reset();
  run.precision = Precision::kFp8;
  run.model.parameters = 1e12;
  const auto assumptions = predict(run, default_hardware()).assumptions;
  EXPECT_THAT(assumptions, Contains(HasSubstr("network: 186 GB/s per node")));
  EXPECT_THAT(assumptions, Contains(HasSubstr("in bf16")));
  EXPECT_THAT(assumptions, Contains(HasSubstr("the description states 1e+12")));
}

TEST(StepPredictionTest, AnUnknownGpuIsAnError) {
  auto run = small_run();
  run.system.gpu = "tpu";
  EXPECT_THROW((void)predict(run, default_hardware()), ArgumentError);
}

}  // namespace
}  // namespace accel::predict::step_prediction_test
