// Tests of the check that all ranks prepare the same model. If they did not, gradients of different shapes would be
// summed, or ranks would wait for each other forever. Each test makes one rank's model differ in one respect; all
// ranks must get the same message.
#include <gmock/gmock.h>
#include <torch/nn/modules/conv.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

// The message of each of four ranks when it prepares its own model; "" if nothing is wrong.
std::vector<std::string> errors_of(Backend backend, const std::function<torch::nn::Sequential(int rank)>& make,
                                   const AcceleratorOptions& options = {}) {
  return collect_ranks(backend, 4, [&](RankContext& rank) -> std::string {
    Accelerator accelerator(options, rank);
    auto net = make(rank.rank);
    try {
      accelerator.prepare(net);
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "";
  });
}

// On both backends, every rank must get this message.
void expect_error(const std::function<torch::nn::Sequential(int rank)>& make, const std::string& error) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads})
    EXPECT_THAT(errors_of(backend, make),
                Each("prepare: the ranks' models differ: " + error + "; build the same model on every rank"));
}

TEST(SameModelTest, AnotherShapeIsAnErrorOnEveryRank) {
  expect_error([](int rank) { return torch::nn::Sequential(torch::nn::Linear(3, rank == 2 ? 5 : 4)); },
               "0.weight is Float [4, 3] on ranks 0, 1, 3, Float [5, 3] on rank 2");
}

// Rank 0 has the additional layer, so it would wait for gradients that no other rank sends.
TEST(SameModelTest, OneLayerMoreIsAnErrorOnEveryRank) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(3, 4));
        if (rank == 0) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
        return net;
      },
      "1.weight is Float [2, 4] on rank 0, missing on ranks 1, 2, 3");
}

TEST(SameModelTest, AnotherDtypeOrAFrozenParameterIsAnErrorOnEveryRank) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(3, 4));
        if (rank == 3) net->to(at::kDouble);
        return net;
      },
      "0.weight is Double [4, 3] on rank 3, Float [4, 3] on ranks 0, 1, 2");
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(3, 4));
        if (rank == 1) net[0]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
        return net;
      },
      "0.bias is Float [4] on ranks 0, 2, 3, Float [4] that requires no gradient on rank 1");
}

// Buckets hold gradients in the memory layout of their parameters, so another layout would sum the wrong elements.
TEST(SameModelTest, AnotherLayoutIsAnErrorOnEveryRank) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 2).bias(false)));
        if (rank == 1) {
          auto& weight = net[0]->as<torch::nn::Conv2d>()->weight;
          weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
        return net;
      },
      "0.weight is Float [2, 3, 2, 2] on ranks 0, 2, 3, Float [2, 3, 2, 2] with strides [12, 1, 6, 3] on rank 1");
}

// Without gradients DDP has nothing to do on that rank, but the rank must still take part in the check.
TEST(SameModelTest, AModelWithoutGradientsOnOneRankBlocksNoRank) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)));
        if (rank == 1) net[0]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
        return net;
      },
      "0.weight is Float [4, 3] on ranks 0, 2, 3, Float [4, 3] that requires no gradient on rank 1");
}

// DDP sends buffers from rank 0, so they must have equal shapes; without that broadcast they may differ.
TEST(SameModelTest, BuffersAreComparedWhereTheyAreBroadcast) {
  const auto make = [](int rank) {
    return torch::nn::Sequential(
        torch::nn::Linear(3, 4),
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false).track_running_stats(rank > 0)));
  };
  expect_error(make, "buffer 0 is Float [4] that requires no gradient on ranks 1, 2, 3, missing on rank 0");
  EXPECT_THAT(errors_of(Backend::kSim, make, {.ddp_kwargs = {.broadcast_buffers = false}}), Each(IsEmpty()));
}

TEST(SameModelTest, ShardedModelsAreComparedToo) {
  const auto make = [](int rank) { return torch::nn::Sequential(torch::nn::Linear(3, rank == 2 ? 5 : 4)); };
  EXPECT_THAT(
      errors_of(Backend::kSim, make, {.fsdp_plugin = FullyShardedDataParallelPlugin()}),
      Each("prepare: the ranks' models differ: 0.weight is Float [4, 3] on ranks 0, 1, 3, Float [5, 3] on rank 2; "
           "build the same model on every rank"));
}

// The collectives go by position. As in PyTorch, names play no part.
TEST(SameModelTest, NamesMayDiffer) {
  EXPECT_THAT(errors_of(Backend::kSim,
                        [](int rank) {
                          torch::nn::Sequential net;
                          net->push_back(rank == 0 ? "first" : "other", torch::nn::Linear(3, 4));
                          return net;
                        }),
              Each(IsEmpty()));
}

}  // namespace
}  // namespace accel::testing
