// Losses that need the other ranks: contrastive ones over gathered features, closures of LBFGS, and what is said of a
// loss without gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::losses_over_ranks_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 3;

struct EncoderImpl : nn::Module {
  EncoderImpl() : first(register_module("first", nn::Linear(4, 6))), last(register_module("last", nn::Linear(6, 2))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return call(last, torch::tanh(call(first, x))); }
  nn::Linear first, last;
};
TORCH_MODULE(Encoder);

Encoder make_encoder() {
  torch::manual_seed(4);
  return {};
}

at::Tensor inputs_of(int rank, int step) {
  return torch::arange(kRows * 4, torch::kDouble).view({kRows, 4}).add(100 * step + 7 * rank).sin();
}

// The loss of a rank's own rows against the rows of all ranks, as in CLIP and SimCLR.
at::Tensor contrastive_loss(const at::Tensor& own, const at::Tensor& all, int rank) {
  return nn::functional::cross_entropy(own.mm(all.t()) / 0.5, torch::arange(kRows) + rank * kRows);
}

constexpr int kSteps = 3;

std::vector<at::Tensor> values_of(const Encoder& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// One process trains on the mean of all ranks' losses.
std::vector<at::Tensor> expected_values(int num_ranks) {
  auto net = make_encoder();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> features;
    for (int rank = 0; rank < num_ranks; ++rank) features.push_back(net->forward(inputs_of(rank, step)));
    at::Tensor loss = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < num_ranks; ++rank)
      loss = loss + contrastive_loss(features[rank], torch::cat(features), rank) / num_ranks;
    loss.backward();
    sgd.step();
    sgd.zero_grad();
  }
  return values_of(net);
}

TEST(LossesOverRanksTest, AContrastiveLossTrainsAsInOneProcess) {
  const std::map<std::string, AcceleratorOptions> engines{
      {"DDP", {}},
      {"FSDP", {.fsdp_plugin = FullyShardedDataParallelPlugin()}},
      {"ZeRO 2", {.deepspeed_plugin = DeepSpeedPlugin{.gradient_clipping = "0", .zero_stage = 2}}}};
  for (const auto& [engine, options] : engines) {
    for (const int num_ranks : {1, 2, 4}) {
      const auto expected = expected_values(num_ranks);
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        SCOPED_TRACE(fmt::format("{} on {} ranks of {}", engine, num_ranks, name_of(backend)));
        run_ranks(backend, num_ranks, [&, &options = options](RankContext& rank) {
          Accelerator accelerator(options, rank);
          auto net = make_encoder();
          torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          for (int step = 0; step < kSteps; ++step) {
            const auto features = model(inputs_of(rank.rank, step));
            const auto all = accelerator.gather(features, {.with_gradients = true});
            accelerator.backward(contrastive_loss(features, all, rank.rank));
            optimizer.step();
            optimizer.zero_grad();
          }
          const auto full = accelerator.gathered_parameters(model);
          const auto values = values_of(net);
          for (std::size_t place = 0; place < values.size(); ++place)
            EXPECT_TRUE(values[place].allclose(expected[place], /*rtol=*/1e-12, /*atol=*/1e-12)) << place;
        });
      }
    }
  }
}

TEST(LossesOverRanksTest, ALossWithoutGradientsIsNamed) {
  for (const int num_ranks : {1, 2}) {
    run_ranks(Backend::kSim, num_ranks, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      auto model = accelerator.prepare(make_encoder());
      const auto all = accelerator.gather(model(inputs_of(rank.rank, 0)));
      EXPECT_THAT(message_of<StateError>([&] { accelerator.backward(all.mean()); }),
                  AllOf(HasSubstr("backward: the loss does not depend"), HasSubstr("{.with_gradients = true}")));
    });
  }
}

// LBFGS evaluates the closure as often as the loss demands: ranks must agree, whatever their batches are.
TEST(LossesOverRanksTest, AClosureMayReturnTheRanksOwnLoss) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    std::vector<std::vector<std::vector<at::Tensor>>> values;
    std::vector<int> evaluations;
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      for (const bool averages : {false, true}) {
        std::vector<int> counts(num_ranks);
        values.push_back(collect_ranks(backend, num_ranks, [&](RankContext& rank) {
          Accelerator accelerator({}, rank);
          auto net = make_encoder();
          torch::optim::LBFGS lbfgs(net->parameters(),
                                    torch::optim::LBFGSOptions(1).max_iter(8).line_search_fn("strong_wolfe"));
          auto [model, optimizer] = accelerator.prepare(net, lbfgs);
          const auto closure = [&, &model = model, &optimizer = optimizer]() -> at::Tensor {
            ++counts[rank.rank];
            optimizer.zero_grad();
            const auto target = inputs_of(rank.rank, 9).slice(1, 0, 2) * (1 + rank.rank);
            const auto loss = (model(inputs_of(rank.rank, 1)) - target).square().mean();
            accelerator.backward(loss);
            return averages ? accelerator.reduce(loss, "mean") : loss;
          };
          for (int step = 0; step < 3; ++step) optimizer.step(closure);
          return values_of(net);
        }));
        EXPECT_THAT(counts, ::testing::Each(counts.front()));
      }
    }
    // Own and averaged losses differ in the last bits, since a mean has more than one order.
    for (std::size_t run = 0; run < values.size(); ++run) {
      for (const auto& rank : values[run]) {
        for (std::size_t place = 0; place < rank.size(); ++place) {
          EXPECT_TRUE(rank[place].equal(values[run % 2][0][place])) << "run " << run << " of " << num_ranks << " ranks";
          EXPECT_TRUE(rank[place].allclose(values[0][0][place], /*rtol=*/1e-9, /*atol=*/1e-9));
        }
      }
    }
  }
}

TEST(LossesOverRanksTest, ALoaderWithoutABatchIsNamed) {
  std::vector<std::string> warnings;
  run_ranks(Backend::kSim, 4, [&](RankContext& rank) {
    rank.warn = [&, index = rank.rank](const std::string& text) {
      if (index == 0) warnings.push_back(text);
    };
    Accelerator accelerator({}, rank);
    const TensorDataset dataset(torch::arange(6));
    auto loader = accelerator.prepare(DataLoader(dataset, {.batch_size = 2, .drop_last = true}));
    for (const auto& batch : loader) (void)batch;
  });
  EXPECT_THAT(warnings, Contains(AllOf(HasSubstr("the loader has no batch: its 6 samples"), HasSubstr("4 ranks"))));
}

}  // namespace
}  // namespace accel::testing::losses_over_ranks_test
