// DDP's buffers: every forward begins with those of rank 0, also if several forward passes precede a backward pass.
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::buffers_test {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using ::testing::HasSubstr;

void on_ranks(const std::function<void(Accelerator&, RankContext&)>& body, const AcceleratorOptions& options = {}) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const int num_ranks : {1, 2, 4}) {
      run_ranks(backend, num_ranks, [&](RankContext& rank) {
        rank.warn = [](const std::string&) {};  // no optimizer is prepared
        Accelerator accelerator(options, rank);
        body(accelerator, rank);
      });
    }
  }
}

// A model whose result is its buffer.
struct OffsetImpl : torch::nn::Module {
  OffsetImpl() {
    weight = register_parameter("weight", torch::ones({1}));
    offset = register_buffer("offset", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& numbers) { return weight * numbers + offset; }
  at::Tensor weight, offset;
};
TORCH_MODULE(Offset);

TEST(BuffersTest, AForwardBeginsWithTheBuffersOfRank0) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      Offset net;
      auto model = accelerator.prepare(net);
      net->offset.fill_(10 * (rank.rank + 1));
      EXPECT_EQ(model(torch::zeros({1})).item<float>(), 10);
    });
  }
}

// --- several forward passes before one backward pass -----------------------------------------------------------------

nn::Sequential normed_net() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Tanh(), nn::Linear(4, 1));
}

// Discriminators and siamese nets train like this.
template <typename Net>
at::Tensor loss_of_two_batches(Net& net, int step, int rank = 0) {
  const auto real = torch::arange(15.0).view({5, 3}).sin() * (step + rank + 1), fake = -real.cos();
  return net(real).square().mean() + net(fake).mean();
}

std::vector<at::Tensor> values_of(const nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.grad().clone());
  for (const auto& buffer : net.buffers()) values.push_back(buffer.clone());
  return values;
}

// The ranks have equal batches, so the mean of their gradients has the bits of one process.
TEST(BuffersTest, TwoForwardsOfABatchNormHaveTheBitsOfOneProcess) {
  for (const bool broadcasts : {true, false}) {
    AcceleratorOptions options;
    options.ddp_kwargs.broadcast_buffers = broadcasts;
    on_ranks(
        [](Accelerator& accelerator, RankContext&) {
          auto expected = normed_net(), net = normed_net();
          const auto call = [&](const at::Tensor& x) { return expected->forward(x); };
          auto model = accelerator.prepare(net);
          for (int step = 0; step < 3; ++step) {
            loss_of_two_batches(call, step).backward();
            accelerator.backward(loss_of_two_batches(model, step));
            const auto found = values_of(*net), wanted = values_of(*expected);
            for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(wanted[i])) << i;
            for (auto* module : {&net, &expected}) (*module)->zero_grad();
          }
        },
        options);
  }
}

TEST(BuffersTest, TwoForwardsBeginWithTheStatisticsOfRank0) {
  on_ranks([](Accelerator& accelerator, RankContext& rank) {
    auto net = normed_net();
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 2; ++step) accelerator.backward(loss_of_two_batches(model, step, rank.rank));
    {
      const torch::NoGradGuard no_grad;
      net->eval();
      model(torch::ones({2, 3}));
    }
    for (const auto& tensor : net->buffers()) {
      const auto all = accelerator.gather(tensor.unsqueeze(0));
      for (int other = 1; other < all.size(0); ++other) EXPECT_TRUE(all[other].equal(all[0]));
    }
    for (const auto& parameter : net->parameters()) {
      const auto all = accelerator.gather(parameter.grad().unsqueeze(0));
      for (int other = 1; other < all.size(0); ++other) EXPECT_TRUE(all[other].equal(all[0]));
    }
  });
}

// A frozen norm reads its statistics in backward, and an evaluation may come between forward and backward.
TEST(BuffersTest, ForwardsInEvaluationModeKeepTheGraph) {
  on_ranks([](Accelerator& accelerator, RankContext&) {
    auto expected = normed_net(), net = normed_net();
    for (auto* module : {&net, &expected}) (*module)->eval();
    const auto call = [&](const at::Tensor& x) { return expected->forward(x); };
    auto model = accelerator.prepare(net);
    loss_of_two_batches(call, 1).backward();
    const auto loss = loss_of_two_batches(model, 1);
    {
      const torch::NoGradGuard no_grad;
      model(torch::ones({2, 3}));
    }
    accelerator.backward(loss);
    const auto found = values_of(*net), wanted = values_of(*expected);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(wanted[i])) << i;
  });
}

// A model whose backward pass reads its buffers: a mask that never changes, and a scale that forward may change where
// autograd does not notice it.
struct ScaledImpl : nn::Module {
  ScaledImpl() {
    weight = register_parameter("weight", torch::ones({3}));
    mask = register_buffer("mask", torch::tensor({0.0, 1.0, -0.0}));
    scale = register_buffer("scale", torch::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto result = x * weight * mask * scale;
    if (changes) scale.set_data(scale + x.detach());
    return result;
  }
  at::Tensor weight, mask, scale;
  bool changes = false;
};
TORCH_MODULE(Scaled);

TEST(BuffersTest, BuffersThatDoNotChangeKeepTheGraph) {
  on_ranks([](Accelerator& accelerator, RankContext& rank) {
    Scaled net;
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 2; ++step) {
      const auto loss =
          model(torch::full({3}, 1.0 + rank.rank)) + model(torch::full({3}, 2.0)) + model(torch::ones({3}));
      accelerator.backward(loss.sum());
    }
    const auto mean = 2 * (3 + (1.0F + rank.world_size) / 2);
    EXPECT_TRUE(net->weight.grad().equal(torch::tensor({0.0F, mean, 0.0F}))) << net->weight.grad();
  });
}

// Rank 0 does not receive other values, but must not wait for the others, which fail.
TEST(BuffersTest, ABufferThatTheGraphNeedsIsNamedOnEveryRank) {
  on_ranks([](Accelerator& accelerator, RankContext& rank) {
    if (rank.world_size == 1) return;
    Scaled net;
    auto model = accelerator.prepare(net);
    net->changes = true;
    const auto loss = model(torch::full({3}, 1.0 + rank.rank)) + model(torch::ones({3}));
    EXPECT_THAT(message_of<StateError>([&] { accelerator.backward(loss.sum()); }),
                AllOf(HasSubstr("the buffers 'scale' have other values"), HasSubstr("broadcast_buffers = false")));
  });
}

TEST(BuffersTest, ABufferThatTheGraphNeedsIsKeptWithoutBroadcasts) {
  AcceleratorOptions options;
  options.ddp_kwargs.broadcast_buffers = false;
  on_ranks(
      [](Accelerator& accelerator, RankContext& rank) {
        Scaled net;
        auto model = accelerator.prepare(net);
        accelerator.backward((model(torch::full({3}, 1.0 + rank.rank)) + model(torch::ones({3}))).sum());
        EXPECT_TRUE(net->weight.grad().defined());
      },
      options);
}

}  // namespace
}  // namespace accel::testing::buffers_test
