// A pipeline computes the gradients and losses of one rank that takes its micro-batches one after the other, to the
// bit, whatever the schedule, and wherever the model is cut.
#include "reference/pipeline/pipeline_executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "reference/modules/call.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::pipeline_executor_test {
namespace {

namespace nn = torch::nn;
using namespace pipeline;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kLayers = 16;  // divides over all numbers of stages in these tests

// A block with a residual stream, so that its input is used twice, and a weight that several operations use.
struct BlockImpl : nn::Module {
  BlockImpl()
      : first(register_module("first", nn::Linear(6, 6))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})))) {}
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(first(norm(x))) * first->bias; }

  nn::Linear first;
  nn::LayerNorm norm;
};
TORCH_MODULE(Block);

std::vector<Block> make_layers() {
  torch::manual_seed(5);
  std::vector<Block> layers;
  for (int layer = 0; layer < kLayers; ++layer) layers.emplace_back();
  return layers;
}

std::vector<Tensors> make_micro_batches(int count) {
  torch::manual_seed(6);
  std::vector<Tensors> micro_batches;
  for (int index = 0; index < count; ++index)
    micro_batches.push_back({torch::randn({index + 1 == count ? 2 : 3, 6})});  // the last one is short
  return micro_batches;
}

at::Tensor loss_of(int micro_batch, const Tensors& outputs) { return (outputs[0] * (micro_batch + 1)).square().mean(); }

struct Trained {
  std::vector<at::Tensor> losses;
  std::map<int, std::vector<at::Tensor>> gradients;  // of a layer
};

std::vector<at::Tensor> gradients_of(Block& layer) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : layer->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

Trained accumulate(int num_micro_batches) {
  auto layers = make_layers();
  Trained trained;
  const auto micro_batches = make_micro_batches(num_micro_batches);
  for (int index = 0; index < num_micro_batches; ++index) {
    auto x = micro_batches[index][0];
    for (auto& layer : layers) x = layer(x);
    auto loss = loss_of(index, {x});
    loss.backward();
    trained.losses.push_back(loss.detach());
  }
  for (int layer = 0; layer < kLayers; ++layer) trained.gradients[layer] = gradients_of(layers[layer]);
  return trained;
}

// On a simulated rank too: sums within LayerNorm depend on the number of threads of an operator.
Trained train_on_one_rank(int num_micro_batches) {
  return collect_ranks(Backend::kSim, 1, [&](RankContext&) { return accumulate(num_micro_batches); }).front();
}

Trained train_as_pipeline(const RankContext& rank, const Schedule& schedule, ExecutorOptions options = {}) {
  auto layers = make_layers();
  const int per_stage = kLayers / schedule.sizes.stages;
  const auto rank_of = rank_of_stages(schedule);
  std::vector<PipelineStage> stages;
  for (int stage = 0; stage < schedule.sizes.stages; ++stage) {
    if (rank_of[stage] != rank.rank) continue;
    stages.push_back(
        {.index = stage, .forward = [&layers, stage, per_stage](const Tensors& inputs, std::optional<int>) {
           auto x = inputs[0];
           for (int layer = stage * per_stage; layer < (stage + 1) * per_stage; ++layer) x = layers[layer](x);
           return Tensors{x};
         }});
  }
  PipelineExecutor executor(rank.world, std::move(stages), schedule, options);
  Trained trained;
  trained.losses = executor.step(make_micro_batches(schedule.sizes.micro_batches), loss_of);
  for (int stage = 0; stage < schedule.sizes.stages; ++stage) {
    if (rank_of[stage] != rank.rank) continue;
    for (int layer = stage * per_stage; layer < (stage + 1) * per_stage; ++layer)
      trained.gradients[layer] = gradients_of(layers[layer]);
  }
  return trained;
}

void expect_equal(const Trained& one, const std::vector<Trained>& ranks) {
  std::size_t num_layers = 0, num_losses = 0;
  for (const auto& trained : ranks) {
    num_layers += trained.gradients.size();
    num_losses += trained.losses.size();
    for (const auto& [layer, gradients] : trained.gradients) {
      for (std::size_t index = 0; index < gradients.size(); ++index)
        EXPECT_TRUE(gradients[index].equal(one.gradients.at(layer)[index]))
            << "layer " << layer << ", parameter " << index;
    }
    for (std::size_t index = 0; index < trained.losses.size(); ++index)
      EXPECT_TRUE(trained.losses[index].equal(one.losses[index])) << "micro-batch " << index;
  }
  EXPECT_EQ(num_layers, std::size_t{kLayers});
  EXPECT_EQ(num_losses, one.losses.size());
}

struct Case {
  std::string schedule;
  int ranks, stages_per_rank;
};

class PipelineExecutorTest : public ::testing::TestWithParam<std::tuple<Backend, Case>> {};

INSTANTIATE_TEST_SUITE_P(
    Schedules, PipelineExecutorTest,
    ::testing::Combine(::testing::Values(Backend::kSim, Backend::kGlooThreads),
                       ::testing::Values(Case{"gpipe", 4, 1}, Case{"gpipe", 2, 4}, Case{"1f1b", 2, 1},
                                         Case{"1f1b", 8, 1}, Case{"interleaved_1f1b", 4, 2},
                                         Case{"interleaved_1f1b", 2, 4}, Case{"zb_h1", 4, 1},
                                         Case{"interleaved_zero_bubble", 2, 4}, Case{"zbv", 4, 2}, Case{"zbv", 1, 2},
                                         Case{"dualpipe_v", 2, 2}, Case{"dualpipe_v", 4, 2})),
    [](const auto& info) {
      const auto& config = std::get<1>(info.param);
      return fmt::format("{}_{}_{}x{}", name_of(std::get<0>(info.param)), config.schedule, config.ranks,
                         config.stages_per_rank);
    });

TEST_P(PipelineExecutorTest, GradientsAndLossesAreThoseOfOneRank) {
  const auto& [backend, config] = GetParam();
  const auto schedule = make_schedule(
      config.schedule, {.stages = config.ranks * config.stages_per_rank, .ranks = config.ranks, .micro_batches = 8});
  expect_equal(train_on_one_rank(8), collect_ranks(backend, config.ranks, [&](RankContext& rank) {
                 return train_as_pipeline(rank, schedule);
               }));
}

TEST(PipelineTest, SendsThatWaitForTheirReceivesGiveTheSame) {
  for (const auto* name : {"1f1b", "zb_h1", "gpipe"}) {
    const auto schedule = make_schedule(name, {.stages = 4, .ranks = 4, .micro_batches = 6});
    for (const int capacity : {0, 1}) {
      expect_equal(train_on_one_rank(6), collect_ranks(Backend::kSim, 4, [&](RankContext& rank) {
                     return train_as_pipeline(rank, schedule, {.send_capacity = capacity});
                   }));
    }
  }
}

TEST(PipelineTest, AScheduleThatWouldHangIsAConfigErrorThatNamesTheCycle) {
  const auto schedule = make_schedule("1f1b", {.stages = 4, .ranks = 4, .micro_batches = 6});
  run_ranks(Backend::kSim, 4, [&](RankContext& rank) {
    EXPECT_THAT(message_of<ConfigError>(
                    [&] { train_as_pipeline(rank, schedule, {.receives = Receives::kDeferred, .send_capacity = 0}); }),
                AllOf(HasSubstr("pipeline with the schedule 1f1b: deadlock: rank "), HasSubstr(" waits in ")));
  });
}

TEST(PipelineTest, AllProblemsAreOneError) {
  const auto schedule = make_schedule("1f1b", {.stages = 4, .ranks = 4, .micro_batches = 6});
  EXPECT_EQ(message_of<ConfigError>([&] { PipelineExecutor(Group(), {{.index = 3}}, schedule); }),
            "pipeline with the schedule 1f1b: the group has 1 ranks, and the schedule 4; rank 0 lacks stage 0; rank 0 "
            "has stage 3, which the schedule puts elsewhere");
}

TEST(PipelineTest, StagesThatStandTwiceAndANegativeCapacityAreErrors) {
  const auto schedule = make_schedule("gpipe", {.stages = 1, .ranks = 1, .micro_batches = 1});
  EXPECT_EQ(message_of<ConfigError>([&] {
              PipelineExecutor(Group(), {{.index = 0}, {.index = 0}}, schedule, {.send_capacity = -1});
            }),
            "pipeline with the schedule gpipe: rank 0 has two stages 0; a send capacity of -1; expected 0 or more");
}

// Inference: any number of micro-batches, and no gradients.
TEST(PipelineTest, ForwardReturnsTheOutputsOnTheLastRank) {
  const auto schedule = make_schedule("interleaved_1f1b", {.stages = 4, .ranks = 2, .micro_batches = 4});
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    std::vector<PipelineStage> stages;
    for (const int stage : {rank.rank, rank.rank + 2}) {
      stages.push_back({.index = stage, .forward = [stage](const Tensors& inputs, std::optional<int>) {
                          return Tensors{inputs[0] * 2 + stage};
                        }});
    }
    PipelineExecutor executor(rank.world, std::move(stages), schedule);
    const auto outputs = executor.forward(make_micro_batches(3));
    ASSERT_EQ(outputs.size(), rank.rank == 1 ? 3U : 0U);
    for (std::size_t index = 0; index < outputs.size(); ++index) {
      auto expected = make_micro_batches(3)[index][0];
      for (int stage = 0; stage < 4; ++stage) expected = expected * 2 + stage;
      EXPECT_TRUE(outputs[index][0].equal(expected));
    }
  });
}

}  // namespace
}  // namespace accel::testing::pipeline_executor_test
