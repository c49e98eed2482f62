// Checks which micro-batches of an accumulation window communicate, and which arguments `backward` rejects. A
// superfluous all-reduce gives the same result, so that only a count of calls can find it.
#include <gtest/gtest.h>

#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::accumulation_traffic_laws {
namespace {

namespace nn = torch::nn;

// Traffic is counted by a rehearsal on virtual time. This network model adds no time: a call finishes when the last
// rank arrives.
std::vector<double> finish_at_once(const sim::EngineGroup&, const Call&, std::span<const double> ready) {
  return std::vector<double>(ready.size(), *std::max_element(ready.begin(), ready.end()));
}

std::int64_t all_reduces_of(const std::function<void(RankContext&)>& body) {
  const auto report = sim::rehearse({.num_ranks = 3, .finish_times = finish_at_once}, body);
  if (report.error) std::rethrow_exception(report.error);
  const auto found = report.volumes.find("all_reduce");
  return found == report.volumes.end() ? 0 : found->second.calls;
}

// How an epoch is divided into windows.
struct Cadence {
  int steps = 2, batches = 5;
  bool sync_each_batch = false, sync_with_dataloader = true;
};

// Returns the number of all-reduces in a training whose gradients fit in one bucket, so one call per
// synchronization.
std::int64_t all_reduces_of(const Cadence& cadence) {
  return all_reduces_of([&](RankContext& rank) {
    Accelerator accelerator({.gradient_accumulation_plugin =
                                 GradientAccumulationPlugin{.num_steps = cadence.steps,
                                                            .sync_with_dataloader = cadence.sync_with_dataloader,
                                                            .sync_each_batch = cadence.sync_each_batch}},
                            rank);
    nn::Linear net(2, 2);
    auto [model, loader] =
        accelerator.prepare(net, DataLoader(TensorDataset(at::ones({3 * cadence.batches, 2})), {.batch_size = 1}));
    for (auto& [x] : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).sum());
    }
  });
}

// Communicating at every micro-batch gives the right result but wastes the time that accumulation saves.
TEST(AccumulationLaws, OnlyMicroBatchesThatSynchroniseCommunicate) {
  expect_property(60, [] {
    const Cadence cadence{.steps = pick(1, 6),
                          .batches = pick(1, 12),
                          .sync_each_batch = pick(0, 2) == 1,
                          .sync_with_dataloader = pick(0, 2) == 1};
    RC_LOG(fmt::format("{} steps, {} batches, sync_each_batch {}, sync_with_dataloader {}", cadence.steps,
                       cadence.batches, cadence.sync_each_batch, cadence.sync_with_dataloader));
    // With sync_with_dataloader the end of the loader closes the last window early, hence the division that rounds
    // up.
    const int windows = cadence.sync_with_dataloader ? (cadence.batches + cadence.steps - 1) / cadence.steps
                                                     : cadence.batches / cadence.steps;
    RC_ASSERT(all_reduces_of(cadence) == (cadence.sync_each_batch ? cadence.batches : windows));
  });
}

TEST(AccumulationLaws, TriggerSyncInBackwardSynchronizesForwardsRunUnderNoSync) {
  const auto train = [](bool triggers) {
    return all_reduces_of([&](RankContext& rank) {
      Accelerator accelerator({}, rank);
      nn::Linear net(2, 2);
      auto model = accelerator.prepare(net);
      at::Tensor loss;
      // Both forwards run without synchronization, so DDP's reducer is not prepared for this backward.
      {
        const auto scope = accelerator.no_sync(model);
        loss = model(at::full({1, 2}, rank.rank + 1.0)).sum() + model(at::full({1, 2}, rank.rank + 1.0)).sum();
      }
      if (triggers) {
        const auto scope = accelerator.trigger_sync_in_backward(model);
        accelerator.backward(loss);
        EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 4) << "2 x the mean of 1, 2, 3";
      } else {
        accelerator.backward(loss);
        EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 2 * (rank.rank + 1));
      }
      net->zero_grad();
      accelerator.backward(model(at::ones({1, 2})).sum());  // the next backward synchronizes as usual
    });
  };
  EXPECT_EQ(train(true), 2);
  EXPECT_EQ(train(false), 1);
}

TEST(AccumulationLaws, InvalidArgumentsOfBackwardAreRejected) {
  const auto rank = make_single_rank();
  Accelerator plain({}, *rank), exact({.loss_weighting = "exact"}, *rank);
  const auto loss = [] { return torch::ones({}, at::requires_grad()); };
  EXPECT_THROW(plain.backward(loss(), {.num_items = 3}), ArgumentError);
  EXPECT_THROW(exact.backward(loss()), ArgumentError) << "outside a loader the number of items is unknown";
  EXPECT_THROW(exact.backward(loss(), {.num_items = -1}), ArgumentError);
  EXPECT_THROW(exact.backward(torch::ones({3}, at::requires_grad())), ArgumentError);
  exact.backward(loss(), {.num_items = 2});
  EXPECT_THROW(exact.backward(loss(), {.num_items = 3}), ArgumentError) << "the same micro-batch with another count";
}

}  // namespace
}  // namespace accel::testing::accumulation_traffic_laws
