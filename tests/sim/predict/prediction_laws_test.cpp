// What must hold for every prediction, whatever its constants are.
#include <gmock/gmock.h>

#include <cmath>

#include "sim/predict/layout_search.hpp"
#include "tests/sim/predict/described_run.hpp"
#include "tests/support/property.hpp"

namespace accel::predict::prediction_laws_test {
namespace {

using accel::testing::expect_property;
using accel::testing::one_in;
using accel::testing::pick;
using accel::testing::pick_from;

std::string any_gpu(const Hardware& hardware) {
  std::vector<std::string> names;
  for (const auto& [name, gpu] : hardware.gpus) names.push_back(name);
  return pick_from(names);
}

ModelShape any_model() {
  const double heads = 8 * pick(1, 9);
  ModelShape model{.layers = 4 * pick(1, 13),
                   .hidden = heads * 128,
                   .heads = heads,
                   .kv_heads = one_in(2) ? 8 : heads,
                   .head_dim = 128,
                   .ffn = heads * 128 * pick(2, 5),
                   .is_gated = one_in(2),
                   .vocab = 1000.0 * pick(1, 200),
                   .is_tied = one_in(2)};
  if (std::fmod(model.heads, model.kv_heads) != 0) model.kv_heads = model.heads;
  if (one_in(4)) {
    model.experts = 8 << pick(0, 4);
    model.top_k = pick(1, 5);
    model.moe_ffn = 512.0 * pick(1, 9);
  }
  return model;
}

// Every kind of parallelism, with sizes that divide each other.
TrainingRun any_run(const Hardware& hardware) {
  TrainingRun run{.id = "any", .model = any_model()};
  run.system = {.gpu = any_gpu(hardware), .gpus_per_node = 8};
  if (one_in(2)) run.system.network_bytes_per_second_per_node = 1e9 * pick(10, 500);
  std::vector<std::string> names;
  for (const auto& framework : frameworks()) names.emplace_back(framework.name);
  run.framework = pick_from(names);
  run.tp = 1 << pick(0, 4);
  run.cp = 1 << pick(0, 3);
  run.pp = 1 << pick(0, 3);
  run.dp = 1 << pick(0, 6);
  run.gpus = run.tp * run.cp * run.pp * run.dp;
  run.sp = one_in(2);
  run.vpp = run.pp > 1 ? pick(1, 3) : 1;
  while (run.pp * run.vpp > run.model.layers) run.vpp = 1, run.pp /= 2, run.gpus /= 2;
  if (run.model.experts > 0) run.ep = std::min({8.0, run.dp * run.cp * run.tp, 1.0 * run.model.experts});
  run.seq = 1024.0 * pick(1, 9);
  run.mbs = pick(1, 5);
  run.micro_batches = run.pp * pick(1, 5);
  run.gbs = run.dp * run.mbs * run.micro_batches;
  run.zero = pick(0, 4);
  run.schedule = run.vpp > 1 ? "interleaved_1f1b" : pick_from<std::string>({"1f1b", "gpipe", "zb_h1", "zb_h2"});
  run.precision = pick_from({Precision::kFp16, Precision::kBf16, Precision::kFp8, Precision::kFp4});
  run.attention = pick_from(
      {AttentionKernel::kUnfused, AttentionKernel::kFlash1, AttentionKernel::kFlash2, AttentionKernel::kCudnn});
  run.recompute.layers = one_in(3) ? 1 : 0;
  run.recompute.attention = one_in(3);
  return run;
}

struct Constant {
  const char* name;
  std::function<void(Hardware&, TrainingRun&, double)> improve;  // by a factor above 1
};

const std::vector<Constant>& constants() {
  static const std::vector<Constant> kConstants = {
      {"products",
       [](Hardware& hardware, TrainingRun& run, double factor) {
         auto& gpu = hardware.gpus.at(run.system.gpu);
         for (auto* flops : {&gpu.flops_bf16, &gpu.flops_fp8, &gpu.flops_fp4}) *flops *= factor;
       }},
      {"attention",
       [](Hardware& hardware, TrainingRun& run, double factor) {
         auto& gpu = hardware.gpus.at(run.system.gpu);
         for (auto* curve : {&gpu.flash1, &gpu.flash2, &gpu.flash2_small_heads})
           for (auto& value : curve->values) value *= factor;
       }},
      {"memory", [](Hardware& hardware, TrainingRun& run,
                    double factor) { hardware.gpus.at(run.system.gpu).memory_bytes_per_second *= factor; }},
      {"nvlink", [](Hardware& hardware, TrainingRun& run,
                    double factor) { hardware.gpus.at(run.system.gpu).nvlink_bus_bytes_per_second *= factor; }},
      {"network", [](Hardware& hardware, TrainingRun&, double factor) { hardware.efficiency.network *= factor; }},
      {"latencies", [](Hardware& hardware, TrainingRun&, double factor) {
         auto& all = hardware.latencies;
         for (auto* latency :
              {&all.kernel, &all.kernel_gap, &all.ring_base, &all.ring_hop_nvlink, &all.ring_hop_network,
               &all.tree_base, &all.tree_hop_nvlink, &all.tree_network, &all.tree_doubling_of_nodes,
               &all.message_nvlink, &all.message_network, &all.expert_synchronization, &all.step})
           *latency /= factor;
       }}};
  return kConstants;
}

TEST(PredictionLaws, PartsAreNotNegative) {
  const auto hardware = default_hardware();
  expect_property(400, [&] {
    const auto run = any_run(hardware);
    const auto prediction = predict(run, hardware);
    const auto& parts = prediction.breakdown;
    for (const double part : {parts.compute, parts.recompute, parts.tensor_parallel, parts.data_parallel,
                              parts.context_parallel, parts.expert_parallel, parts.optimizer, parts.other}) {
      RC_ASSERT(part >= 0);
      RC_ASSERT(std::isfinite(part));
    }
    RC_ASSERT(parts.pipeline_bubble >= -1e-9 * parts.sum());
    const auto& memory = prediction.memory;
    for (const double part :
         {memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.reserve})
      RC_ASSERT(part >= 0);
  });
}

// Each rank's order of actions is fixed, so a faster stage delays nothing.
TEST(PredictionLaws, NoTimeRisesWithAFasterConstant) {
  const auto hardware = default_hardware();
  expect_property(400, [&] {
    auto run = any_run(hardware);
    const auto& constant = constants()[pick<std::size_t>(0, constants().size())];
    RC_TAG(std::string(constant.name));
    auto faster = hardware;
    constant.improve(faster, run, 1 + pick(1, 300) / 100.0);
    RC_ASSERT(predict(run, faster).step_seconds() <= predict(run, hardware).step_seconds() * (1 + 1e-9));
  });
}

// Twice the replicas for the same batch: each computes half of the micro-batches. The work of all GPUs does not shrink.
TEST(PredictionLaws, MoreReplicasOfTheSameBatchAreFasterButNotBeyondTheirWork) {
  const auto hardware = default_hardware();
  expect_property(300, [&] {
    auto run = any_run(hardware);
    run.system.gpus_per_nvlink_domain = 4096;  // messages between stages take the same way in both
    run.micro_batches *= 2;
    run.gbs *= 2;
    auto wider = run;
    wider.dp *= 2;
    wider.gpus *= 2;
    wider.micro_batches /= 2;
    if (run.model.experts > 0) wider.ep = run.ep;
    const auto narrow = predict(run, hardware), wide = predict(wider, hardware);
    RC_ASSERT(2 * wide.breakdown.compute >= narrow.breakdown.compute * (1 - 1e-9));
    const double work = narrow.breakdown.compute + narrow.breakdown.recompute;
    RC_ASSERT(wide.step_seconds() >= work / 2 * (1 - 1e-9));
    // Sums over more ranks may cost more than is gained: that is their own part.
    const auto without = [](const Prediction& of) { return of.step_seconds() - of.breakdown.data_parallel; };
    RC_ASSERT(without(wide) <= without(narrow) * (1 + 1e-9));
  });
}

TEST(PredictionLaws, OneStageIsNoPipeline) {
  const auto hardware = default_hardware();
  expect_property(200, [&] {
    auto run = any_run(hardware);
    run.gpus /= run.pp;
    run.pp = run.vpp = 1;
    auto named = run;
    named.schedule = pick_from<std::string>({"1f1b", "gpipe", "zb_h1", "dualpipe"});
    const auto prediction = predict(named, hardware);
    RC_ASSERT(prediction.breakdown.pipeline_bubble == 0);
    RC_ASSERT(prediction.step_seconds() == predict(run, hardware).step_seconds());
    RC_ASSERT(prediction.memory.sum() == predict(run, hardware).memory.sum());
  });
}

// A layer more costs as much memory at any depth.
TEST(PredictionLaws, MemoryIsAdditiveInLayers) {
  const auto hardware = default_hardware();
  expect_property(200, [&] {
    auto run = any_run(hardware);
    run.gpus /= run.pp;
    run.pp = run.vpp = 1;
    const auto bytes = [&](int layers) {
      auto other = run;
      other.model.layers = layers;
      return predict(other, hardware).memory.sum();
    };
    const int layers = run.model.layers;
    const double first = bytes(layers + 1) - bytes(layers), second = bytes(layers + 2) - bytes(layers + 1);
    RC_ASSERT(std::abs(first - second) <= 1e-6 * bytes(layers));
    RC_ASSERT(first > 0);
  });
}

TEST(PredictionLaws, ShardedOptimizersAndRecomputationNeverNeedMoreMemory) {
  const auto hardware = default_hardware();
  expect_property(300, [&] {
    auto run = any_run(hardware);
    run.recompute = {};
    run.zero = pick(0, 2);
    run.framework = "megatron_core";  // other frameworks keep parameters in 32 bits
    auto leaner = run;
    if (one_in(2))
      ++leaner.zero;
    else
      leaner.recompute.layers = 1;
    // A recomputed layer needs its activations while it is computed again: one layer gains nothing.
    if (run.model.layers / run.pp < 4) return;
    RC_ASSERT(predict(leaner, hardware).memory.sum() <= predict(run, hardware).memory.sum() * (1 + 1e-9));
  });
}

TEST(PredictionLaws, AFoundLayoutFitsAndIsThePredictionOfItsRun) {
  const auto hardware = default_hardware();
  int num_found = 0;
  expect_property(10, [&] {
    auto run = any_run(hardware);
    run.gpus = 64;
    run.gbs = 256;
    const auto search = search_layouts(run, hardware, 5);
    RC_ASSERT(search.num_tried > 0);
    RC_ASSERT(search.fitting.empty() == (search.num_refused == search.num_tried));
    num_found += static_cast<int>(search.fitting.size());
    double before = 0;
    for (const auto& [layout, prediction] : search.fitting) {
      RC_ASSERT(prediction.memory.sum() <= hardware.gpus.at(run.system.gpu).memory_bytes);
      RC_ASSERT(layout.dp * layout.tp * layout.cp * layout.pp == 64);
      RC_ASSERT(layout.dp * layout.mbs * layout.micro_batches == 256);
      RC_ASSERT(predict(layout, hardware).step_seconds() == prediction.step_seconds());
      RC_ASSERT(prediction.step_seconds() >= before);
      before = prediction.step_seconds();
    }
  });
  EXPECT_GT(num_found, 0);
}

}  // namespace
}  // namespace accel::predict::prediction_laws_test
