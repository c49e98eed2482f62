// bfloat16 weights with float32 master copies, compared with a training that is written out by hand.
#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <filesystem>

#include "reference/accelerator/local_sgd.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/optim/optimizers/fused_adagrad.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/optim/optimizers/fused_sgd.hpp"
#include "tests/reference/training_state/saved_training.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::master_weights {
namespace {

namespace nn = torch::nn;
using saved_training::Training;
using ::testing::HasSubstr;

AcceleratorOptions options(int accumulation_steps = 1) {
  auto options = saved_training::ddp();
  options.mixed_precision = "bf16";
  options.master_weights = true;
  options.gradient_accumulation_steps = accumulation_steps;
  return options;
}

struct NetImpl : nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(4, 8))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})))),
        second(register_module("second", nn::Linear(8, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(norm(at::linear(x, first->weight, first->bias)).tanh(), second->weight, second->bias);
  }
  nn::Linear first;
  nn::LayerNorm norm;
  nn::Linear second;
};
TORCH_MODULE(Net);

Net net_of(std::uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}

at::Tensor inputs_of(int rank, int micro_batch) { return torch::full({3, 4}, 0.1 * (rank + 1) - 0.03 * micro_batch); }

class MasterWeightsTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, MasterWeightsTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Two ranks average bfloat16 gradients of matrices, accumulated over two micro-batches, and float32 ones of vectors;
// AdamW steps float32 values.
std::vector<at::Tensor> trained_by_hand(int num_windows) {
  auto net = net_of(1);
  std::vector<at::Tensor> masters;
  for (auto& parameter : net->parameters()) {
    masters.push_back(parameter.detach().clone());
    if (parameter.dim() >= 2) parameter.set_data(parameter.detach().to(torch::kBFloat16));
  }
  optim::AdamW adamw(masters, {.lr = 0.05});
  const auto outputs_of = [&](const at::Tensor& inputs) {
    const Autocast autocast({.dtype = at::kBFloat16});
    return net->forward(inputs);
  };
  for (int window = 0; window < num_windows; ++window) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < 2; ++rank) {
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
        outputs_of(inputs_of(rank, 2 * window + micro_batch)).to(torch::kFloat).square().mean().div(2).backward();
      auto& gradients = of_ranks.emplace_back();
      for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = (of_ranks[0][i] / 2 + of_ranks[1][i] / 2).to(torch::kFloat);
    adamw.step();
    for (std::size_t i = 0; i < masters.size(); ++i) net->parameters()[i].copy_(masters[i]);
  }
  return masters;
}

TEST_P(MasterWeightsTest, HaveTheBitsOfATrainingByHand) {
  // On a rank, because layer norm's sums depend on the number of threads.
  const auto expected = collect_ranks(Backend::kSim, 1, [](RankContext&) { return trained_by_hand(3); }).front();
  run_ranks(GetParam(), 2, [&](RankContext& rank) {
    Accelerator accelerator(options(/*accumulation_steps=*/2), rank);
    auto net = net_of(rank.rank + 1);  // rank 0's weights are those of all
    optim::AdamW adamw(net->parameters(), {.lr = 0.05});
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    EXPECT_EQ(net->first->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->first->bias.scalar_type(), at::kFloat);
    for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(inputs_of(rank.rank, micro_batch)).square().mean());
      EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kBFloat16);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto state = accelerator.get_state_dict(model);
    std::size_t place = 0;
    for (const auto& item : net->named_parameters()) {
      const auto found =
          std::find_if(state.begin(), state.end(), [&](const auto& entry) { return entry.first == item.key(); });
      EXPECT_TRUE(found->second.equal(expected[place])) << item.key();
      EXPECT_TRUE(item.value().equal(expected[place].to(item.value().scalar_type()))) << item.key();
      ++place;
    }
  });
}

// Six micro-batches, or one that saves after the first `saved_after` and one that loads that.
std::string state_of_training(RankContext& rank, int accumulation_steps, const std::string& folder,
                              std::optional<int> saved_after) {
  const auto make = [&](std::uint64_t seed, int first, int last, bool loads) {
    Accelerator accelerator(options(accumulation_steps), rank);
    auto net = net_of(seed);
    optim::AdamW adamw(net->parameters(), {.lr = 0.05});
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    if (loads) accelerator.load_state(folder);
    for (int micro_batch = first; micro_batch < last; ++micro_batch) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(inputs_of(rank.rank, micro_batch)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    if (saved_after == last) accelerator.save_state(folder);
    std::string state = pack(optim::state_dict(adamw));
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) state += name + pack(tensor);
    return state;
  };
  if (!saved_after) return make(/*seed=*/1, 0, 6, /*loads=*/false);
  make(/*seed=*/1, 0, *saved_after, /*loads=*/false);
  return make(/*seed=*/9, *saved_after, 6, /*loads=*/true);
}

// Also inside an accumulation window, whose gradients are bfloat16.
TEST_P(MasterWeightsTest, ResumeFromACheckpointWithTheirBits) {
  const TemporaryFolder folder;
  for (const int accumulation_steps : {1, 3}) {
    run_ranks(GetParam(), 2, [&](RankContext& rank) {
      const auto path = folder.path("state");
      const bool is_equal = state_of_training(rank, accumulation_steps, path, /*saved_after=*/4) ==
                            state_of_training(rank, accumulation_steps, path, std::nullopt);
      EXPECT_TRUE(is_equal) << accumulation_steps << " accumulation steps";
    });
  }
  const SafetensorsFile saved(folder.path("state") + "/model.safetensors");
  EXPECT_EQ(saved.tensor("first.weight").scalar_type(), at::kFloat);
}

TEST_P(MasterWeightsTest, ClipByAFloat32Norm) {
  run_ranks(GetParam(), 2, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    optim::SGD sgd(net->parameters(), {.lr = 0.1});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(inputs_of(rank.rank, 0)).square().mean());
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.grad().to(at::kDouble).flatten());
    const auto norm = accelerator.clip_grad_norm_(net->parameters(), 1e-3);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_NEAR(norm.item<double>(), at::cat(all).norm().item<double>(), 1e-6);
    optimizer.step();
  });
}

// The second optimizer's gradients, exactly weighted, are not those that the first one's step used up.
TEST_P(MasterWeightsTest, TwoOptimizersStepPartsOfOneModel) {
  const auto trained = [](Backend backend, bool has_two) {
    return collect_ranks(backend, 2, [&](RankContext& rank) {
      auto exact = options();
      exact.loss_weighting = "exact";
      Accelerator accelerator(exact, rank);
      auto net = net_of(1);
      auto first_parameters = net->first->parameters(), others = net->norm->parameters();
      for (const auto& parameter : net->second->parameters()) others.push_back(parameter);
      if (!has_two) first_parameters.insert(first_parameters.end(), others.begin(), others.end());
      optim::SGD sgd(first_parameters, {.lr = 0.5}), other_sgd(others, {.lr = 0.5});
      auto [model, optimizer, other] = accelerator.prepare(net, sgd, other_sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(inputs_of(rank.rank, step)).square().mean(), {.num_items = 3.0 + rank.rank});
        optimizer.step();
        if (has_two) other.step();
        optimizer.zero_grad();
        other.zero_grad();
      }
      std::string state;
      for (const auto& [name, tensor] : accelerator.get_state_dict(model)) state += name + pack(tensor);
      return state;
    });
  };
  EXPECT_EQ(trained(GetParam(), /*has_two=*/true), trained(GetParam(), /*has_two=*/false));
}

// Adagrad's state exists from its construction, when the parameters had another dtype.
TEST_P(MasterWeightsTest, StateFromTheConstructorIsFloat32) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    auto model = accelerator.prepare(net);
    optim::Adagrad adagrad(net->parameters(), {.lr = 0.1});
    auto optimizer = accelerator.prepare(adagrad);
    accelerator.backward(model(inputs_of(0, 0)).square().mean());
    optimizer.step();
    const auto state = adagrad.state_dict();
    EXPECT_EQ(state.at("state").at("0").at("sum").as<at::Tensor>().scalar_type(), at::kFloat);
  });
}

// What the program writes into a weight counts; other elements keep their float32 values.
TEST_P(MasterWeightsTest, AdoptWhatTheProgramWrites) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    const auto before = net->first->weight.detach().clone();
    auto model = accelerator.prepare(net);
    const auto state_of_first = [&] { return accelerator.get_state_dict(model).front().second; };
    {
      const torch::NoGradGuard no_grad;
      net->first->weight[0][0] = 0.5;
    }
    auto expected = before.clone();
    expected[0][0] = 0.5;
    EXPECT_TRUE(state_of_first().equal(expected));
    net->first->weight.set_data(torch::full({8, 4}, 0.25, torch::kBFloat16));
    EXPECT_TRUE(state_of_first().equal(torch::full({8, 4}, 0.25)));
    EXPECT_TRUE(net->first->weight.equal(torch::full({8, 4}, 0.25, torch::kBFloat16)));
  });
}

TEST_P(MasterWeightsTest, AStepKeepsWhatTheProgramHasWritten) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    optim::SGD sgd(net->parameters(), {.lr = 0});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(inputs_of(0, 0)).square().mean());
    {
      const torch::NoGradGuard no_grad;
      net->first->weight[0][0] = 0.5;
    }
    optimizer.step();
    EXPECT_EQ(net->first->weight[0][0].item<float>(), 0.5F);
  });
}

TEST_P(MasterWeightsTest, LibTorchsArchivesAreRefused) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    auto model = accelerator.prepare(net);
    std::ostringstream out;
    EXPECT_THAT(message_of<StateError>([&] { torch::save(model, out); }),
                HasSubstr("torch::save: with master_weights the model's parameters are bfloat16"));
  });
}

TEST_P(MasterWeightsTest, AreLeftToTheModuleWhenItsModelIsReleased) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    const auto weight = net->first->weight.detach().clone();
    auto model = accelerator.prepare(net);
    accelerator.free_memory(model);
    EXPECT_TRUE(net->first->weight.equal(weight));
    net->to(torch::kBFloat16);
    model = accelerator.prepare(net);
    EXPECT_EQ(net->first->bias.scalar_type(), at::kFloat);
    EXPECT_EQ(accelerator.get_state_dict(model).front().second.scalar_type(), at::kFloat);
  });
}

TEST_P(MasterWeightsTest, CountAsMemory) {
  run_ranks(GetParam(), 1, [&](RankContext& rank) {
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    auto model = accelerator.prepare(net);
    const std::int64_t matrices = 4 * 8 + 8 * 2, vectors = 8 + 2 * 8 + 2;
    EXPECT_EQ(accelerator.memory_account(model).now(sharded::MemoryKind::kParameters),
              matrices * (2 + 4) + vectors * 4);
  });
}

TEST(MasterWeightsOptionsTest, ReportWhatExcludesThem) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    EXPECT_THAT(
        message_of<ConfigError>([&] { Accelerator({.mixed_precision = "fp16", .master_weights = true}, rank); }),
        HasSubstr("master_weights: requires mixed_precision 'bf16', got 'fp16'"));
    EXPECT_THAT(message_of<ConfigError>([&] {
                  Accelerator({.mixed_precision = "bf16",
                               .master_weights = true,
                               .channels_last = true,
                               .fsdp_plugin = FullyShardedDataParallelPlugin{}},
                              rank);
                }),
                AllOf(HasSubstr("master_weights: has no effect on sharded models, whose optimizers step float32 shards "
                                "already; remove it"),
                      HasSubstr("channels_last: has no effect on sharded models")));
    EXPECT_THAT(message_of<ConfigError>([&] {
                  Accelerator(
                      {.mixed_precision = "bf16", .master_weights = true, .autocast_kwargs = {.enabled = false}}, rank);
                }),
                HasSubstr("master_weights: requires autocast_kwargs.enabled: true"));
    Accelerator accelerator(options(), rank);
    auto net = net_of(1);
    torch::optim::LBFGS lbfgs(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, lbfgs);
    EXPECT_THAT(message_of<StateError>([&, model = model] { LocalSGD(accelerator, model); }),
                HasSubstr("LocalSGD: does not support master_weights"));
    EXPECT_THAT(message_of<StateError>([&] { optimizer.step([] { return at::zeros({}); }); }),
                HasSubstr("step: a closure is unsupported with fp16, loss_weighting: exact, master_weights"));
  });
}

}  // namespace
}  // namespace accel::testing::master_weights
