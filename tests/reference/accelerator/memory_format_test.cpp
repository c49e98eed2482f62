#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;

struct ConvolutionsImpl : nn::Module {
  ConvolutionsImpl()
      : first(register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)))),
        norm(register_module("norm", nn::BatchNorm2d(4))) {}
  at::Tensor forward(const at::Tensor& images, const at::Tensor& offset) {
    was_channels_last = images.is_contiguous(at::MemoryFormat::ChannelsLast) && !images.is_contiguous();
    return norm(first(images)).relu() + offset;
  }
  nn::Conv2d first;
  nn::BatchNorm2d norm;
  bool was_channels_last = false;
};
TORCH_MODULE(Convolutions);

// The values are those of the usual format, up to the order of sums inside a convolution.
TEST(MemoryFormatTest, ChannelsLastConvertsWeightsAndInputs) {
  const auto trained = [](bool channels_last) {
    return collect_ranks(Backend::kSim, 2,
                         [&](RankContext& rank) {
                           torch::manual_seed(3);
                           Accelerator accelerator({.channels_last = channels_last}, rank);
                           Convolutions net;
                           torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
                           auto [model, optimizer] = accelerator.prepare(net, sgd);
                           const auto images = torch::randn({2, 3, 8, 8});
                           for (int step = 0; step < 3; ++step) {
                             accelerator.backward(model(images, torch::ones({6})).square().mean());
                             EXPECT_EQ(net->was_channels_last, channels_last);
                             EXPECT_EQ(net->first->weight.is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
                             optimizer.step();
                             optimizer.zero_grad();
                           }
                           return net->first->weight.detach().clone();
                         })
        .front();
  };
  EXPECT_TRUE(trained(true).allclose(trained(false), /*rtol=*/1e-4, /*atol=*/1e-6));
}

}  // namespace
}  // namespace accel::testing
