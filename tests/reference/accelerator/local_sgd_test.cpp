// Local SGD: ranks train separately and average their parameters every few steps. The tests use one weight and
// steps of known size, so every average is known exactly.
#include "reference/accelerator/local_sgd.hpp"

#include <gtest/gtest.h>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;

// A model with one weight, initially 0. A step on rank r adds r + 1 to it.
struct Counter {
  explicit Counter(RankContext& rank)
      : accelerator({}, rank), model(accelerator.prepare(net)), sgd(net->parameters(), 1.0) {
    const torch::NoGradGuard no_grad;
    net->weight.zero_();
  }
  void step(RankContext& rank) {
    accelerator.backward(model(at::full({1, 1}, -(rank.rank + 1.0))).sum());
    sgd.step();
    sgd.zero_grad();
  }
  [[nodiscard]] double weight() const { return net->weight.item<double>(); }

  nn::Linear net{nn::LinearOptions(1, 1).bias(false)};
  Accelerator accelerator;
  PreparedModel<nn::LinearImpl> model;
  torch::optim::SGD sgd;
};

class LocalSGDTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, LocalSGDTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Each rank adds its own number, so every value shows how often and when the parameters were averaged.
TEST_P(LocalSGDTest, ParametersAreAveragedEveryFewStepsAndAtTheEnd) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    Counter counter(rank);
    const double own = rank.rank + 1;
    LocalSGD local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 2});
    std::vector<double> seen;
    for (int step = 0; step < 3; ++step) {
      counter.step(rank);
      local_sgd.step();
      seen.push_back(counter.weight());
    }
    EXPECT_EQ(seen, (std::vector<double>{own, 4, 4 + own})) << "rank " << rank.rank;
    local_sgd.finish();
    EXPECT_EQ(counter.weight(), 6);
    local_sgd.finish();
    counter.step(rank);
    EXPECT_EQ(counter.weight(), 8) << "gradients synchronise again";
  });
}

// The number of steps is below local_sgd_steps, so only finish() averages.
TEST_P(LocalSGDTest, TheFormWithABodyFinishes) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Counter counter(rank);
    local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 8}, [&](LocalSGD& local_sgd) {
      counter.step(rank);
      local_sgd.step();
      EXPECT_EQ(counter.weight(), rank.rank + 1.0);
      EXPECT_EQ(local_sgd.num_steps(), 1);
    });
    EXPECT_EQ(counter.weight(), 1.5);
  });
}

// Destructors must not communicate: during an exception the other ranks would wait.
TEST_P(LocalSGDTest, WithoutFinishNothingIsAveragedButGradientsSynchronizeAgain) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Counter counter(rank);
    {
      LocalSGD local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 8});
      counter.step(rank);
    }
    EXPECT_EQ(counter.weight(), rank.rank + 1.0);
    counter.step(rank);
    EXPECT_EQ(counter.weight(), rank.rank + 2.5);
  });
}

// The same program must run with and without local SGD, controlled by one flag, as in accelerate/local_sgd.py.
TEST_P(LocalSGDTest, DisabledItIsOrdinaryTraining) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Counter counter(rank);
    LocalSGD local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 1, .enabled = false});
    counter.step(rank);
    local_sgd.step();
    EXPECT_EQ(counter.weight(), 1.5);
    local_sgd.finish();
  });
}

// Python averages all parameters of the model, including frozen ones.
TEST_P(LocalSGDTest, FrozenParametersAreAveragedToo) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Sequential net(nn::Linear(1, 1), nn::Linear(1, 1));
    const auto frozen = net[0]->parameters()[0].set_requires_grad(false);
    auto model = accelerator.prepare(net);
    frozen.fill_(rank.rank);
    LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 1});
    local_sgd.step();
    EXPECT_EQ(frozen.item<double>(), 0.5);
    local_sgd.finish();
  });
}

// Averaging writes into the parameters. It must not count as a change that invalidates a graph that still uses
// them.
TEST_P(LocalSGDTest, AGraphThatStillHoldsTheParametersCanGoBackward) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Counter counter(rank);
    LocalSGD local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 1});
    const auto x = at::full({1, 1}, 2.0).requires_grad_();
    const auto y = counter.model(x).sum();
    local_sgd.step();
    EXPECT_NO_THROW(y.backward());
    EXPECT_EQ(counter.net->weight.grad().item<double>(), 2);
    local_sgd.finish();
  });
}

TEST_P(LocalSGDTest, StepsAreAtLeastOne) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    Counter counter(rank);
    EXPECT_THROW(LocalSGD(counter.accelerator, counter.model, {.local_sgd_steps = 0}), ArgumentError);
  });
}

// Averaging with itself would change nothing but take time.
TEST(LocalSGDAloneTest, ASingleProcessOnlyCountsSteps) {
  auto rank = make_single_rank();
  const RankScope scope(*rank);
  Counter counter(*rank);
  LocalSGD local_sgd(counter.accelerator, counter.model, {.local_sgd_steps = 1});
  counter.step(*rank);
  local_sgd.step();
  local_sgd.finish();
  EXPECT_EQ(counter.weight(), 1);
}

}  // namespace
}  // namespace accel::testing
