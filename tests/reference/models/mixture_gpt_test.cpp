// A gpt whose feed-forwards are mixtures of experts: its loss, also when blocks are recomputed or sharded, its initial
// weights and its errors. properties/gpt_laws.cpp compares its training under every layout with one rank.
#include <accel/accel.hpp>
#include <accel/models.hpp>
#include <accel/optim.hpp>
#include <accel/testing.hpp>
#include <gmock/gmock.h>

#include "reference/experts/router.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::mixture_gpt_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Gradients = std::map<std::string, at::Tensor>;

constexpr std::int64_t kExperts = 4;

models::GptOptions small_mixture() {
  models::GptOptions options{.vocab_size = 16, .block_size = 8, .layers = 2, .heads = 4, .width = 8};
  options.initial_std = 0.3;
  options.dtype = "float64";
  options.num_local_experts = kExperts;
  options.router_aux_loss_coef = 0.5;
  return options;
}

at::Tensor tokens() { return (at::arange(32) * 5 % 16).view({4, 8}); }
at::Tensor targets() { return (tokens() + 5) % 16; }

std::shared_ptr<models::LanguageModel> seeded_gpt(const models::GptOptions& options,
                                                  const DeviceMesh& mesh = DeviceMesh()) {
  const GeneratorScope scope(make_generator(3));
  return models::gpt(options, mesh);
}

class KeepOutputs : public ModuleObserver {
 public:
  void before_forward(const std::vector<at::Tensor>& /*inputs*/) override {}
  void after_forward(const std::vector<at::Tensor>& outputs) override { outputs_of_calls.push_back(outputs); }
  std::vector<std::vector<at::Tensor>> outputs_of_calls;
};

double cross_entropy(models::LanguageModel& network) {
  return at::cross_entropy_loss(network.forward(tokens()).flatten(0, 1), targets().flatten()).item<double>();
}

// Computed again from the logits of the routers.
TEST(MixtureGptTest, TheTrainingLossIncludesTheAuxiliaryLossOfEachLayerOnce) {
  const auto network = seeded_gpt(small_mixture());
  const auto logits = std::make_shared<KeepOutputs>();
  std::vector<ScopedModuleObserver> observed;
  for (const auto& item : network->named_modules()) {
    if (item.key().ends_with("mixture.router")) observed.emplace_back(*item.value(), logits);
  }
  const auto loss = network->forward(tokens(), targets()).item<double>();
  ASSERT_EQ(logits->outputs_of_calls.size(), 2);
  double auxiliary = 0;
  for (const auto& outputs : logits->outputs_of_calls) {
    const auto probabilities = at::softmax(outputs[0], -1);
    const auto chosen = std::get<1>(at::topk(probabilities, 2));
    const auto shares = at::one_hot(chosen, kExperts).sum(std::vector<std::int64_t>{0, 1}).to(at::kDouble) / 64;
    auxiliary += 0.5 * kExperts * (shares * probabilities.mean(0)).sum().item<double>();
  }
  EXPECT_GT(auxiliary, 1);
  EXPECT_NEAR(loss, cross_entropy(*network) + auxiliary, 1e-12);
}

TEST(MixtureGptTest, TheLossInEvaluationIsTheCrossEntropy) {
  const auto network = seeded_gpt(small_mixture());
  network->eval();
  EXPECT_NEAR(network->forward(tokens(), targets()).item<double>(), cross_entropy(*network), 1e-12);
}

// As a program that generates text on the main process.
TEST(MixtureGptTest, ARankEvaluatesCompleteExpertsAlone) {
  run_ranks(2, [](RankContext& rank) {
    const auto network = seeded_gpt(small_mixture(), DeviceMesh(rank, {.dp_replicate_size = 2}));
    network->eval();
    if (rank.rank == 0) EXPECT_EQ(network->forward(tokens()).size(2), 16);
  });
}

TEST(MixtureGptTest, ExpertsStartWithTheStandardDeviationOfOtherLayers) {
  auto options = small_mixture();
  options.width = 64;
  options.layers = 8;
  const auto parameters = seeded_gpt(options)->named_parameters();
  const auto std_of = [&](const std::string& name) {
    return parameters["blocks.0.feed_forward.mixture." + name].std().item<double>();
  };
  EXPECT_NEAR(std_of("router.weight"), 0.3, 0.05);
  EXPECT_NEAR(std_of("experts.up_proj"), 0.3, 0.01);
  EXPECT_NEAR(std_of("experts.down_proj"), 0.3 / 4, 0.01) << "its result is added to the residual stream";
  EXPECT_EQ(std_of("experts.up_proj_bias"), 0);
}

struct Recompute : ModuleHooks {
  void before_forward() override {}
  void after_forward(std::vector<at::Tensor>& /*outputs*/) override {}
  [[nodiscard]] bool recomputes() const override { return true; }
};

struct Backward {
  double loss = 0;
  Gradients gradients = {};
};

Backward backward_of(const models::GptOptions& options, const DeviceMesh& mesh, bool recomputes) {
  const auto network = seeded_gpt(options, mesh);
  std::vector<ScopedModuleHooks> hooks;
  for (const auto* name : {"blocks.0", "blocks.1.feed_forward"}) {
    if (recomputes) hooks.emplace_back(*network->named_modules()[name], std::make_shared<Recompute>());
  }
  const auto own = [&](const at::Tensor& samples) { return samples.chunk(mesh["dp"].size())[mesh["dp"].rank()]; };
  const auto loss = network->forward(own(tokens()), own(targets()));
  loss.backward();
  Backward backward{.loss = loss.item<double>()};
  for (const auto& item : network->named_parameters()) backward.gradients[item.key()] = item.value().grad().clone();
  return backward;
}

TEST(MixtureGptTest, ARecomputedForwardAddsNoSecondAuxiliaryLoss) {
  for (const auto& sizes : {ParallelismConfig{.dp_replicate_size = 4}, ParallelismConfig{.tp_size = 2, .ep_size = 2}}) {
    run_ranks(4, [&](RankContext& rank) {
      const DeviceMesh mesh(rank, sizes);
      auto options = small_mixture();
      options.sequence_parallel = true;
      const auto expected = backward_of(options, mesh, false), found = backward_of(options, mesh, true);
      EXPECT_EQ(found.loss, expected.loss);
      for (const auto& [name, gradient] : expected.gradients)
        EXPECT_TRUE(at::equal(found.gradients.at(name), gradient)) << name;
    });
  }
}

// A capacity at which no expert is full changes nothing; the smallest one drops tokens.
TEST(MixtureGptTest, ACapacityDropsTokens) {
  const auto loss_with = [](std::optional<double> capacity_factor) {
    auto options = small_mixture();
    options.capacity_factor = capacity_factor;
    return seeded_gpt(options)->forward(tokens(), targets()).item<double>();
  };
  EXPECT_EQ(loss_with(kExperts), loss_with({}));
  EXPECT_NE(loss_with(0.25), loss_with({}));
}

// Names, complete initial weights and the random numbers drawn after them.
TEST(MixtureGptTest, EveryLayoutStartsWithTheWeightsOfOneRank) {
  for (const auto* positions : {"learned", "rotary"}) {
    auto options = small_mixture();
    options.positions = positions;
    options.feed_forward = "swiglu";
    const auto drawn = [&](const DeviceMesh& mesh) {
      const GeneratorScope scope(make_generator(3));
      const auto network = models::gpt(options, mesh);
      std::vector<std::pair<std::string, at::Tensor>> weights{{"next random numbers", at::rand({3})}};
      const auto cuts = parallel::parameter_cuts(*network);
      for (const auto& item : network->named_parameters()) {
        const auto cut = cuts.find(item.key());
        weights.emplace_back(item.key(), cut == cuts.end() ? item.value() : cut->second.whole_of(item.value()));
      }
      return weights;
    };
    const auto expected = drawn(DeviceMesh());
    run_ranks(8, [&](RankContext& rank) {
      const auto found = drawn(DeviceMesh(rank, {.dp_replicate_size = 2, .tp_size = 2, .ep_size = 2}));
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t place = 0; place < expected.size(); ++place) {
        EXPECT_EQ(found[place].first, expected[place].first);
        EXPECT_TRUE(at::equal(found[place].second, expected[place].second)) << found[place].first;
      }
    });
  }
}

// Returns the losses. Every rank has its own tokens.
std::vector<double> train(Accelerator& accelerator, auto& model, auto& optimizer, int num_steps) {
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step) {
    const auto own = (tokens() + accelerator.process_index() + step) % 16;
    const auto loss = model(own, (own + 5) % 16);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

// On two ranks a sum does not depend on its order, so these have equal bits.
TEST(MixtureGptTest, ShardedAndRecomputedBlocksHaveTheLossesOfDdp) {
  const auto losses_of = [](const AcceleratorOptions& options) {
    return run_ranks(2, [&] {
      Accelerator accelerator(options);
      set_seed(3);
      const auto net = models::gpt(small_mixture());
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      return train(accelerator, model, optimizer, /*num_steps=*/3);
    });
  };
  const auto expected = losses_of({});
  EXPECT_LT(expected[0][2], expected[0][0]);
  for (const auto* unit : {"Block", "Mixture"}) {
    for (const bool recomputes : {false, true}) {
      FullyShardedDataParallelPlugin plugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                            .transformer_cls_names_to_wrap = {unit}};
      plugin.activation_checkpointing = recomputes;
      EXPECT_EQ(losses_of({.fsdp_plugin = plugin}), expected) << unit << recomputes;
    }
  }
}

// Under ZeRO the mean over ranks is taken in another order.
TEST(MixtureGptTest, ZeroShardsExpertsThatRanksDivide) {
  const auto losses_of = [](const AcceleratorOptions& options) {
    return run_ranks(4, [&] {
      Accelerator accelerator(options);
      set_seed(3);
      const auto net = models::gpt(small_mixture(), accelerator.mesh());
      optim::AdamW adamw(net->parameters(), {.lr = 0.01});
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      return train(accelerator, model, optimizer, /*num_steps=*/4);
    });
  };
  const auto expected = losses_of({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .ep_size = 2}});
  for (const int stage : {1, 2, 3}) {
    const DeepSpeedPlugin plugin{
        .gradient_clipping = "0", .zero_stage = stage, .stage3_param_persistence_threshold = 0};
    const auto found = losses_of(
        {.parallelism_config = ParallelismConfig{.dp_shard_size = 2, .ep_size = 2}, .deepspeed_plugin = plugin});
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      for (std::size_t step = 0; step < found[rank].size(); ++step)
        EXPECT_NEAR(found[rank][step], expected[rank][step], 1e-12) << stage;
    }
  }
}

TEST(MixtureGptTest, AllThatIsWrongIsInOneError) {
  run_ranks(3, [](RankContext& rank) {
    auto options = small_mixture();
    options.num_experts_per_tok = 5;
    options.capacity_factor = 0;
    options.router_aux_loss_coef = -1;
    const DeviceMesh mesh(rank, {.ep_size = 3});
    EXPECT_THAT(
        message_of<ConfigError>([&] { models::gpt(options, mesh); }),
        AllOf(
            HasSubstr("gpt: num_experts_per_tok: expected 1 to 4, the num_local_experts, got 5"),
            HasSubstr("gpt: num_local_experts: 4 do not divide over 3 expert-parallel ranks; expected a multiple of 3"),
            HasSubstr("gpt: capacity_factor: expected a number above 0, got 0"),
            HasSubstr("gpt: router_aux_loss_coef: expected a number of 0 or more, got -1")));
    options = small_mixture();
    options.num_local_experts.reset();
    options.capacity_factor = 1;
    EXPECT_THAT(message_of<ConfigError>([&] { models::gpt(options); }),
                HasSubstr("gpt: capacity_factor: has an effect with num_local_experts only"));
  });
}

}  // namespace
}  // namespace accel::testing::mixture_gpt_test
