#include <gmock/gmock.h>
#include <torch/nn/modules/conv.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

// What each of four ranks is told when it prepares a model of its own; "" where nothing is wrong.
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

// On both backends every rank is told the same.
void expect_error(const std::function<torch::nn::Sequential(int rank)>& make, const std::string& error) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads})
    EXPECT_THAT(errors_of(backend, make), Each("prepare: the ranks' models differ: " + error));
}

TEST(SameModelTest, AnotherShapeIsAnErrorOnEveryRank) {
  expect_error([](int rank) { return torch::nn::Sequential(torch::nn::Linear(3, rank == 2 ? 5 : 4)); },
               "0.weight is Float [4, 3] on ranks 0, 1, 3, Float [5, 3] on rank 2");
}

TEST(SameModelTest, OneLayerMoreIsToldOnEveryRank) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(3, 4));
        if (rank == 0) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
        return net;
      },
      "1.weight is Float [2, 4] on rank 0, missing on ranks 1, 2, 3");
}

TEST(SameModelTest, AnotherDtypeOrAFrozenParameterIsToldOnEveryRank) {
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

// Buckets hold gradients in the layout of their parameters.
TEST(SameModelTest, AnotherLayoutIsToldOnEveryRank) {
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

TEST(SameModelTest, AModelWithoutGradientsOnOneRankHangsNobody) {
  expect_error(
      [](int rank) {
        torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)));
        if (rank == 1) net[0]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
        return net;
      },
      "0.weight is Float [4, 3] on ranks 0, 2, 3, Float [4, 3] that requires no gradient on rank 1");
}

TEST(SameModelTest, BuffersAreComparedWhereTheyAreBroadcast) {
  const auto make = [](int rank) {
    return torch::nn::Sequential(
        torch::nn::Linear(3, 4),
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false).track_running_stats(rank > 0)));
  };
  expect_error(make, "buffer 0 is Float [4] that requires no gradient on ranks 1, 2, 3, missing on rank 0");
  EXPECT_THAT(errors_of(Backend::kSim, make, {.ddp_kwargs = {.broadcast_buffers = false}}), Each(IsEmpty()));
}

TEST(SameModelTest, ModelsThatAreShardedAreComparedToo) {
  const auto make = [](int rank) { return torch::nn::Sequential(torch::nn::Linear(3, rank == 2 ? 5 : 4)); };
  EXPECT_THAT(
      errors_of(Backend::kSim, make, {.fsdp_plugin = FullyShardedDataParallelPlugin()}),
      Each("prepare: the ranks' models differ: 0.weight is Float [4, 3] on ranks 0, 1, 3, Float [5, 3] on rank 2"));
}

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
