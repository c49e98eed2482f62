// How much of a sharded step's communication computation hides, on a device whose groups have streams, and a network
// with virtual time.
#include <gtest/gtest.h>

#include <cstdlib>

#include "reference/accelerator/accelerator.hpp"
#include "reference/models/gpt.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"
#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

struct Layout {
  std::string network = "nvlink_8.yaml";
  int num_ranks = 8, ranks_per_machine = 8;
  FullyShardedDataParallelPlugin plugin = {};
};

// The part of a step of a 12-layer gpt that waits for communication.
double exposed_share(Layout layout) {
  layout.plugin.auto_wrap_policy = "TRANSFORMER_BASED_WRAP";
  layout.plugin.transformer_cls_names_to_wrap = {"Block"};
  programs::RehearsalOptions options;
  options.network = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/sim/networks/" + layout.network;
  const programs::Rehearsal rehearsal(options, layout.num_ranks);
  const auto report = programs::run_threads(rehearsal, std::chrono::minutes(5), [&](RankContext& rank) {
    rank.local_world_size = layout.ranks_per_machine;
    rank.local_rank = rank.rank % layout.ranks_per_machine;
    const fake_device::DeviceScope on_device(rank);
    Accelerator accelerator({.fsdp_plugin = layout.plugin}, rank);
    set_seed(1);
    auto net = models::gpt({.vocab_size = 64, .block_size = 32, .layers = 12, .heads = 2, .width = 32});
    optim::AdamW adam(net->parameters(), {.lr = 1e-3});
    auto [model, optimizer] = accelerator.prepare(net, adam);
    const auto tokens = torch::zeros({1, 32}, torch::kLong).to(rank.device);
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(model(tokens).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  if (report.error) std::rethrow_exception(report.error);
  const auto prediction = programs::predict(report.times);
  return prediction.mean.exposed_communication / prediction.step_seconds;
}

TEST(ExposedCommunicationTest, PrefetchHidesTheGathersOfFsdp) {
  const auto without = exposed_share({.plugin = {.backward_prefetch = "NO_PREFETCH", .forward_prefetch = false}}),
             with = exposed_share({});
  RecordProperty("without_prefetch", fmt::format("{:.4f}", without));
  RecordProperty("with_prefetch", fmt::format("{:.4f}", with));
  EXPECT_LT(with, 0.01);
  EXPECT_GT(without, 0.03);
}

// The replicas sum the shards of a unit while the next one computes. Waiting for each sum at once exposes 0.024.
TEST(ExposedCommunicationTest, ReplicasOfHybridShardingSumBesideComputation) {
  const auto share = exposed_share({.network = "infiniband_400g.yaml",
                                    .num_ranks = 16,
                                    .ranks_per_machine = 8,
                                    .plugin = {.sharding_strategy = "HYBRID_SHARD"}});
  RecordProperty("share", fmt::format("{:.4f}", share));
  EXPECT_LT(share, 0.012);
}

}  // namespace
}  // namespace accel::testing
