// Tests of ShardedModel, below the Accelerator, against DDP. In exact arithmetic (small integers) every strategy
// must give DDP's bits on any number of ranks; in floating point on two ranks, where the order of a sum cannot
// matter.
#include "reference/sharded/sharded_model.hpp"

#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/sharded/sharded_training.hpp"

namespace accel::testing {
namespace {

using sharded::ShardedModel;

// A strategy with its name, for messages.
struct Strategy {
  const char* name;
  ShardingOptions options;
};

// All stages, and options that must not change the result: prefetching and recomputation.
std::vector<Strategy> strategies() {
  ShardingOptions full, grad_op, zero1, zero2, prefetching, post, checkpointed;
  full.wrap = {.kind = WrapPolicy::Kind::kByClass, .classes = {"Block"}};
  full.wrap.modules = {"tail\\.[02]", "blocks\\.1\\.inner"};
  for (auto* options : {&grad_op, &zero1, &zero2, &prefetching, &post, &checkpointed}) *options = full;
  grad_op.reshard_after_forward = false;
  zero1.parameters = zero1.reshard_after_forward = zero1.gradients = false;
  zero2.parameters = zero2.reshard_after_forward = false;
  prefetching.prefetch = Prefetch::kBackwardPre;
  prefetching.forward_prefetch = true;
  post.prefetch = Prefetch::kBackwardPost;
  checkpointed.activation_checkpointing = true;
  return {{"full", full},
          {"grad_op", grad_op},
          {"zero1", zero1},
          {"zero2", zero2},
          {"prefetching", prefetching},
          {"post", post},
          {"checkpointed", checkpointed},
          {"one unit", ShardingOptions{}}};
}

NamedTensors named(Net& net) {
  NamedTensors tensors;
  for (const auto& item : net->named_parameters()) tensors.emplace_back(item.key(), item.value().detach().clone());
  return tensors;
}

struct Job {
  int num_steps = 1, micro_batches = 1;
  bool is_exact = false;    // small integers: sums are exact in any order
  bool syncs_each = false;  // synchronises at every micro-batch
};

// The factor 6 keeps the mean over 1, 2, 3, 4 or 6 ranks an integer.
at::Tensor loss_of(const at::Tensor& output, const Job& job) {
  return job.is_exact ? output.sum() * 6 : output.square().mean() / job.micro_batches;
}
double rate_of(const Job& job) { return job.is_exact ? 1.0 : 0.05; }

// The reference.
NamedTensors train_by_ddp(RankContext& rank, const Job& job) {
  auto net = make_net(4, 3, job.is_exact);
  ModelTensors tensors;
  for (const auto& item : net->named_parameters()) tensors.parameters.emplace_back(item.key(), item.value());
  DistributedDataParallel ddp(tensors, rank.world, {.find_unused_parameters = true});
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(rate_of(job)).momentum(job.is_exact ? 0 : 0.9));
  for (int step = 0; step < job.num_steps; ++step) {
    for (int micro = 0; micro < job.micro_batches; ++micro) {
      ddp.sync_flags.backward = micro + 1 == job.micro_batches;
      ddp.before_forward();
      std::vector<at::Tensor> outputs{
          net->forward(batch_of(rank.rank, step * job.micro_batches + micro, 4, job.is_exact))};
      ddp.after_forward(outputs);
      loss_of(outputs.front(), job).backward();
    }
    sgd.step();
    sgd.zero_grad();
  }
  return named(net);
}

NamedTensors train_by_shards(RankContext& rank, const ShardingOptions& options, const Job& job) {
  auto net = make_net(4, 3, job.is_exact);
  ShardedModel sharded(net.ptr(), groups_of(rank), options);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(rate_of(job)).momentum(job.is_exact ? 0 : 0.9));
  for (int step = 0; step < job.num_steps; ++step) {
    for (int micro = 0; micro < job.micro_batches; ++micro) {
      sharded.sync_gradients = job.syncs_each || micro + 1 == job.micro_batches;
      loss_of(call_sharded(sharded, net, batch_of(rank.rank, step * job.micro_batches + micro, 4, job.is_exact)), job)
          .backward();
    }
    sharded.show_shards();
    sgd.step();
    sgd.zero_grad();
    sharded.mark_stepped();
  }
  return sharded.full_state();
}

// Synchronising at every micro-batch only changes the order of sums, which is exact here.
TEST(ShardedModelTest, EveryStrategyTrainsLikeDdpInExactArithmetic) {
  for (const int num_ranks : {1, 2, 3, 4, 6}) {
    const auto expected = run_ranks(num_ranks, [](RankContext& rank) {
                            return train_by_ddp(rank, {.micro_batches = 3, .is_exact = true});
                          }).front();
    for (const auto& strategy : strategies()) {
      for (const bool syncs_each : {false, true}) {
        SCOPED_TRACE(fmt::format("{} on {} ranks, {}", strategy.name, num_ranks, syncs_each));
        const Job job{.micro_batches = 3, .is_exact = true, .syncs_each = syncs_each};
        expect_equal(expected, run_ranks(num_ranks, [&](RankContext& rank) {
                                 return train_by_shards(rank, strategy.options, job);
                               }).front());
      }
    }
  }
}

// The sum of two numbers does not depend on their order.
TEST(ShardedModelTest, EveryStrategyTrainsLikeDdpOnTwoRanks) {
  const Job job{.num_steps = 5, .micro_batches = 2};
  const auto expected = run_ranks(2, [&](RankContext& rank) { return train_by_ddp(rank, job); }).front();
  for (const auto& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    expect_equal(expected,
                 run_ranks(2, [&](RankContext& rank) { return train_by_shards(rank, strategy.options, job); }).front());
  }
}

// Strategies differ in when they gather and reduce, not in how they sum. Rounding must therefore be the same.
TEST(ShardedModelTest, StrategiesWithTheSameUnitsHaveTheSameBits) {
  const Job job{.num_steps = 4, .micro_batches = 2};
  for (const int num_ranks : {3, 5, 8}) {
    std::optional<NamedTensors> expected;
    for (const auto& strategy : strategies()) {
      if (strategy.options.wrap.kind == WrapPolicy::Kind::kNone) continue;
      SCOPED_TRACE(fmt::format("{} on {} ranks", strategy.name, num_ranks));
      const auto found =
          run_ranks(num_ranks, [&](RankContext& rank) { return train_by_shards(rank, strategy.options, job); }).front();
      if (!expected) expected = found;
      expect_equal(*expected, found);
    }
  }
}

}  // namespace
}  // namespace accel::testing
