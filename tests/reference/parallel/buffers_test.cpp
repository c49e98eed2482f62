// DDP's buffers: every forward begins with those of rank 0.
#include <gtest/gtest.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

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

}  // namespace
}  // namespace accel::testing
