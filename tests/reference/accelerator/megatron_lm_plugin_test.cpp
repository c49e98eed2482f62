// Trainings with MegatronLMPlugin. The reference is the same training without the plugin, in which the program itself
// sets what the plugin implies.
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accel.hpp>

#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::megatron_lm_plugin_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWidth = 320;  // a layer is large enough for a unit

// Counts its forward passes, of which recomputation adds one per micro-batch.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int& num_forwards)
      : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))), num_forwards_(num_forwards) {}
  at::Tensor forward(const at::Tensor& x) {
    ++num_forwards_;
    return torch::relu(linear(x));
  }

  torch::nn::Linear linear;

 private:
  int& num_forwards_;
};
TORCH_MODULE(Block);

// What a training leaves on rank 0.
struct Trained {
  NamedTensors state = {};
  int num_forwards = 0;
};

// 4 micro-batches, with or without calls of clip_grad_norm_.
Trained train(const AcceleratorOptions& options, std::optional<double> max_norm = std::nullopt) {
  return collect_ranks(
             Backend::kGlooThreads, 2,
             [&](RankContext& rank) {
               Trained trained;
               torch::manual_seed(7);
               const torch::nn::Sequential net(Block(trained.num_forwards), torch::nn::Linear(kWidth, 2));
               torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
               Accelerator accelerator(options, rank);
               auto [model, optimizer] = accelerator.prepare(net, sgd);
               for (int step = 0; step < 4; ++step) {
                 auto window = accelerator.accumulate(model);
                 const auto input = torch::linspace(-1, 1, 3 * kWidth).reshape({3, kWidth}) * (rank.rank + step + 1);
                 accelerator.backward(model(input).square().mean());
                 if (max_norm && accelerator.sync_gradients())
                   accelerator.clip_grad_norm_(model.parameters(), *max_norm);
                 optimizer.step();
                 optimizer.zero_grad();
               }
               trained.state = accelerator.get_state_dict(model);
               return trained;
             })
      .front();
}

bool are_equal(const Trained& left, const Trained& right) {
  return std::equal(
      left.state.begin(), left.state.end(), right.state.begin(), right.state.end(),
      [](const auto& a, const auto& b) { return a.first == b.first && torch::equal(a.second, b.second); });
}

AcceleratorOptions megatron(const MegatronLMPlugin& plugin) { return {.megatron_lm_plugin = plugin}; }

class MegatronLMTrainingTest : public ::testing::Test {
 protected:
  CleanEnvironment environment_{{"ACCELERATE_", "MEGATRON_LM_", "PARALLELISM_CONFIG_"}};
};

// The norm is far above both limits, so the limit of each step shows.
TEST_F(MegatronLMTrainingTest, StepsClipToTheNormOfThePlugin) {
  for (const double norm : {0.25, 1.0}) {
    EXPECT_TRUE(are_equal(train(megatron({.gradient_clipping = norm})), train({}, norm))) << norm;
  }
  EXPECT_TRUE(are_equal(train(megatron({})), train({}, 1.0)));
  EXPECT_TRUE(are_equal(train(megatron({.gradient_clipping = 0})), train({})));
  EXPECT_FALSE(are_equal(train({}, 0.25), train({}, 1.0)));
}

TEST_F(MegatronLMTrainingTest, MicroBatchesAreAccumulated) {
  const auto accumulated = train({.gradient_accumulation_steps = 2}, 1.0);
  EXPECT_TRUE(are_equal(train(megatron({.num_micro_batches = 2})), accumulated));
  EXPECT_FALSE(are_equal(train({}, 1.0), accumulated));
}

// On two ranks a sum does not depend on its order. The norm of shards is summed in another order, so it is left out.
TEST_F(MegatronLMTrainingTest, ShardsDoNotChangeTheNumbers) {
  const auto expected = train({});
  EXPECT_EQ(expected.num_forwards, 4);
  for (const bool recomputes : {false, true}) {
    for (const bool shards_all : {false, true}) {
      const auto trained = train(megatron({.use_custom_fsdp = shards_all,
                                           .gradient_clipping = 0,
                                           .recompute_activations = recomputes,
                                           .use_distributed_optimizer = true}));
      EXPECT_TRUE(are_equal(trained, expected)) << shards_all << recomputes;
      EXPECT_EQ(trained.num_forwards, recomputes ? 8 : 4) << shards_all;
    }
  }
}

TEST_F(MegatronLMTrainingTest, TheAcceleratorHasTheResolvedPlugin) {
  environment_.set({{"ACCELERATE_USE_MEGATRON_LM", "true"},
                    {"MEGATRON_LM_TP_DEGREE", "2"},
                    {"MEGATRON_LM_SEQUENCE_PARALLELISM", "True"},
                    {"MEGATRON_LM_NUM_MICRO_BATCHES", "3"}});
  run_ranks(Backend::kSim, 4, [](RankContext& rank) {
    const Accelerator accelerator({}, rank);
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMegatronLm);
    EXPECT_EQ(accelerator.megatron_lm_plugin()->sequence_parallelism, true);
    EXPECT_EQ(accelerator.parallelism_config()->dp_replicate_size, 2);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.rank % 2);
    EXPECT_EQ(accelerator.data_parallel_rank(), rank.rank / 2);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  });
}

// --- errors ----------------------------------------------------------------------------------------------------------

std::string problem_of(const AcceleratorOptions& options) {
  std::string message;
  run_ranks(Backend::kSim, 1, [&](RankContext& rank) {
    message = message_of<ConfigError>([&] { Accelerator accelerator(options, rank); });
  });
  return message;
}

TEST_F(MegatronLMTrainingTest, ProblemsOfAllOptionsAreInOneError) {
  auto options = megatron({.tp_degree = 2, .pp_degree = 2, .calculate_per_token_loss = false});
  options.parallelism_config.emplace();
  options.fsdp_plugin.emplace();
  options.loss_weighting = "exact";
  options.rng_types = {"xla"};
  EXPECT_THAT(
      problem_of(options),
      AllOf(HasSubstr("megatron_lm_plugin and parallelism_config exclude each other"),
            HasSubstr("megatron_lm_plugin and fsdp_plugin exclude each other"),
            HasSubstr("pp_degree: expected 1, got '2'"), HasSubstr("do not divide 1 ranks"),
            HasSubstr("calculate_per_token_loss: false contradicts loss_weighting 'exact'"), HasSubstr("rng_types")));
  environment_.set({{"ACCELERATE_USE_MEGATRON_LM", "true"}, {"ACCELERATE_USE_DEEPSPEED", "true"}});
  EXPECT_THAT(problem_of({}), HasSubstr("megatron_lm_plugin and deepspeed_plugin exclude each other"));
}

// LBFGS evaluates the model inside of its step, after the gradients have been clipped.
TEST_F(MegatronLMTrainingTest, AStepThatClipsAcceptsNoClosure) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    Accelerator accelerator(megatron({}), rank);
    const torch::nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_THAT(message_of<StateError>([&] { optimizer.step([] { return at::Tensor(); }); }),
                HasSubstr("a closure is unsupported with"));
  });
}

// Exact weights count items: with 1 item on rank 0 and 3 on rank 1, rank 1's gradient counts 3 / 4.
TEST_F(MegatronLMTrainingTest, LossesPerTokenAreWeightedByItems) {
  const auto weight = [](const MegatronLMPlugin& plugin) {
    return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      Accelerator accelerator(megatron(plugin), rank);
      const torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      torch::nn::init::zeros_(net->weight);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto loss = model(at::full({1, 1}, rank.rank * 1.0)).sum();
      if (plugin.calculate_per_token_loss) {
        accelerator.backward(loss, {.num_items = 1 + 2.0 * rank.rank});
      } else {
        accelerator.backward(loss);
      }
      optimizer.step();
      return net->weight.item<double>();
    });
  };
  EXPECT_THAT(weight({.calculate_per_token_loss = true, .gradient_clipping = 0}), ElementsAre(-0.75, -0.75));
  EXPECT_THAT(weight({.gradient_clipping = 0}), ElementsAre(-0.5, -0.5));
}

}  // namespace
}  // namespace accel::testing::megatron_lm_plugin_test
