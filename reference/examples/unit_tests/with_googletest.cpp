// Tests of distributed code in GoogleTest, on simulated ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/testing.hpp>

namespace {

using accel::RankContext;
using accel::testing::run_ranks;

// The code under test: the mean over the values of all ranks, which may have different numbers of values.
double global_mean(const accel::Group& world, const at::Tensor& values) {
  auto sum_and_count =
      torch::stack({values.sum(torch::kDouble), torch::tensor(double(values.numel()), torch::kDouble)});
  world.all_reduce(sum_and_count).wait();
  return (sum_and_count[0] / sum_and_count[1]).item<double>();
}

TEST(GlobalMean, CountsEveryValueOnce) {
  const auto means = run_ranks(
      4, [](RankContext& rank) { return global_mean(rank.world, torch::full({rank.rank}, 2.0 * rank.rank)); });
  EXPECT_EQ(means, std::vector<double>(4, (1 * 2.0 + 2 * 4.0 + 3 * 6.0) / 6));
}

TEST(GlobalMean, IsTheSameUnderAnySchedule) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto means =
        run_ranks(3, {.schedule = {.kind = accel::sim::ScheduleKind::kRandom, .seed = seed}},
                  [](RankContext& rank) { return global_mean(rank.world, torch::ones({rank.rank + 1})); });
    EXPECT_EQ(means, std::vector<double>(3, 1.0));
  }
}

TEST(ForgottenRank, IsNamedAtOnce) {
  try {
    run_ranks(4, [](RankContext& rank) {
      if (rank.rank != 2) rank.world.barrier();
    });
    FAIL() << "rank 2 missed the barrier, and the run did not report it";
  } catch (const accel::sim::RunError& error) {
    EXPECT_EQ(error.diagnosis()->ranks, std::vector<int>{2});
    EXPECT_EQ(error.diagnosis()->op, "barrier");
  }
}

TEST(Training, KeepsReplicasEqual) {
  const auto weights = run_ranks(4, [] {
    accel::Accelerator accelerator;
    accel::set_seed(1);
    torch::nn::Linear net(3, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 5; ++step) {
      const auto x = torch::randn({8, 3}) + accelerator.process_index();
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    return net->weight.detach().clone();
  });
  for (const auto& weight : weights) EXPECT_TRUE(weight.equal(weights.front()));
}

}  // namespace
