// Parameters that several modules share (tied weights), and sparse gradients, from `prepare` to `step`.
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>

#include <accel/accel.hpp>
#include <limits>

#include "reference/optim/optimizers/clip.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWords = 11, kWidth = 4;

// An output layer that uses the weight of another layer.
struct SharedReadoutImpl : nn::Module {
  explicit SharedReadoutImpl(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(SharedReadout);

// A model with words as input, scores of words as output, and one weight for both. With `names_it_twice` the module
// that reads it out registers it too, as LibTorch's users tie weights.
struct TiedWordsImpl : nn::Module {
  explicit TiedWordsImpl(bool names_it_twice)
      : embedding(register_module("embedding", nn::Embedding(kWords, kWidth))),
        hidden(register_module("hidden", nn::Linear(kWidth, kWidth))) {
    if (names_it_twice) register_module("readout", SharedReadout(embedding->weight));
  }
  at::Tensor forward(const at::Tensor& words) {
    return at::linear(at::tanh(hidden(embedding(words))), embedding->weight);
  }
  nn::Embedding embedding;
  nn::Linear hidden;
};
TORCH_MODULE(TiedWords);

// What a training leaves: parameters, the norms of its steps, and the optimizer's state.
struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms;
  Value state;
};

// Trains a language model with tied weights, which appear once or twice among its parameters.
Trained train_tied(bool names_it_twice, const AcceleratorOptions& options, bool with_libtorchs, RankContext& rank) {
  Accelerator accelerator(options, rank);
  torch::manual_seed(3);
  TiedWords net(names_it_twice);
  optim::AdamW ours(net->parameters(), {.lr = 0.1});
  torch::optim::AdamW libtorchs(net->parameters(), torch::optim::AdamWOptions(0.1));
  torch::optim::Optimizer& plain = with_libtorchs ? static_cast<torch::optim::Optimizer&>(libtorchs) : ours;
  auto model = accelerator.prepare(net);
  auto optimizer = accelerator.prepare(plain);
  auto loader = accelerator.prepare(DataLoader(TensorDataset(at::arange(16) % kWords), {.batch_size = 2}));
  Trained result;
  for (auto& [words] : loader) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(nn::functional::cross_entropy(model(words), (words + 1) % kWords));
    if (accelerator.sync_gradients())
      result.norms.push_back(accelerator.clip_grad_norm_(net->parameters(), 0.25).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& parameter : model.parameters()) result.parameters.push_back(parameter.detach().clone());
  result.state = optim::state_dict(plain);
  return result;
}

// LibTorch's parameters() lists a shared parameter twice. Stepping it twice would double its learning rate.
TEST(SharedParametersTest, OneOfTwoModulesIsTrainedOnce) {
  const std::vector<AcceleratorOptions> all = {{},
                                               {.mixed_precision = "fp16"},
                                               {.gradient_accumulation_steps = 2},
                                               {.gradient_accumulation_steps = 2, .loss_weighting = "exact"}};
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& options : all) {
      for (const bool with_libtorchs : {false, true}) {
        const auto trained = [&](bool names_it_twice) {
          return collect_ranks(
              backend, 2, [&](RankContext& rank) { return train_tied(names_it_twice, options, with_libtorchs, rank); });
        };
        const auto once = trained(false), twice = trained(true);
        for (int rank = 0; rank < 2; ++rank) {
          ASSERT_EQ(twice[rank].parameters.size(), 3);
          EXPECT_TRUE(equal_bits(twice[rank].parameters, once[rank].parameters));
          EXPECT_EQ(twice[rank].norms, once[rank].norms);
          EXPECT_EQ(twice[rank].state, once[rank].state);
        }
      }
    }
  }
}

// Two shards of one parameter would be updated twice in each step.
TEST(SharedParametersTest, AShardedModelTrainsASharedParameterOnce) {
  const AcceleratorOptions options{.fsdp_plugin = FullyShardedDataParallelPlugin{}};
  const auto trained = [&](bool names_it_twice) {
    return collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      return train_tied(names_it_twice, options, /*with_libtorchs=*/false, rank);
    });
  };
  const auto once = trained(false), twice = trained(true);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(equal_bits(twice[rank].parameters, once[rank].parameters));
    EXPECT_EQ(twice[rank].norms, once[rank].norms);
  }
}

// LibTorch lists a tied parameter twice in parameters(), Python only once.
TEST(SharedParametersTest, AnOptimizerStepsASharedParameterOnce) {
  TiedWords net(/*names_it_twice=*/true);
  ASSERT_EQ(net->parameters().size(), 4);
  optim::SGD sgd(net->parameters(), {.lr = 1.0});
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  const auto before = net->embedding->weight.detach().clone();
  EXPECT_FLOAT_EQ(optim::clip_grad_norm(net->parameters(), 1e9).item<float>(),
                  std::sqrt(static_cast<float>(kWords * kWidth + kWidth * kWidth + kWidth)));
  sgd.step();
  EXPECT_TRUE(net->embedding->weight.equal(before - 1));
}

// --- sparse gradients ---

// A model with an embedding, whose gradients are sparse or dense.
struct Words : nn::Module {
  explicit Words(bool is_sparse)
      : embedding(register_module("embedding", nn::Embedding(nn::EmbeddingOptions(kWords, kWidth).sparse(is_sparse)))),
        linear(register_module("linear", nn::Linear(kWidth, 1))) {}
  at::Tensor forward(const at::Tensor& words) { return linear(embedding(words)); }
  nn::Embedding embedding;
  nn::Linear linear;
};

// The parameters after some steps; sparse and dense gradients must give the same.
std::vector<at::Tensor> train_words(bool is_sparse, RankContext& rank) {
  Accelerator accelerator({}, rank);
  torch::manual_seed(4);
  auto net = std::make_shared<Words>(is_sparse);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(at::tensor({step, rank.rank, step}, at::kLong)).square().sum());
    EXPECT_EQ(net->embedding->weight.grad().is_sparse(), is_sparse);
    optimizer.step();
    optimizer.zero_grad();
  }
  return model.parameters();
}

// Gloo sums dense tensors only, so sparse gradients are converted. Without it only the rows of one rank would be
// updated.
TEST(SharedParametersTest, SparseGradientsAreAveragedAsDenseOnes) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto dense = collect_ranks(backend, 3, [](RankContext& rank) { return train_words(false, rank); });
    const auto sparse = collect_ranks(backend, 3, [](RankContext& rank) { return train_words(true, rank); });
    for (int rank = 0; rank < 3; ++rank) {
      for (std::size_t parameter = 0; parameter < dense[rank].size(); ++parameter)
        EXPECT_TRUE(at::allclose(sparse[rank][parameter], dense[rank][parameter])) << name_of(backend);
      EXPECT_TRUE(equal_bits(sparse[rank], sparse[0])) << "replicas differ";
    }
  }
}

// SparseAdam for the embedding, another optimizer for the rest. A step with an infinite gradient is skipped under fp16.
TEST(SharedParametersTest, SparseAdamStepsTheRowsOfAllRanksInAnyPrecision) {
  for (const auto& options :
       {AcceleratorOptions{}, AcceleratorOptions{.mixed_precision = "fp16", .grad_scaler_kwargs = {.init_scale = 8}},
        AcceleratorOptions{.mixed_precision = "bf16", .master_weights = true}}) {
    const auto weights = collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      Accelerator accelerator(options, rank);
      torch::manual_seed(4);
      auto net = std::make_shared<Words>(true);
      optim::SparseAdam of_words(net->embedding->parameters(), {.lr = 0.5});
      torch::optim::SGD of_others(net->linear->parameters(), 0.05);
      auto [model, words, others] = accelerator.prepare(net, of_words, of_others);
      const auto before = net->embedding->weight.detach().clone();
      const auto step = [&, &model = model, &words = words, &others = others](double factor) {
        accelerator.backward(model(at::tensor({rank.rank, 2}, at::kLong)).square().sum() * factor);
        for (auto* optimizer : {&words, &others}) {
          optimizer->step();
          optimizer->zero_grad();
        }
      };
      if (options.mixed_precision == "fp16") {
        step(std::numeric_limits<double>::infinity());
        EXPECT_TRUE(words.step_was_skipped() && net->embedding->weight.equal(before));
      }
      step(1);
      step(1);
      const auto& after = net->embedding->weight;
      EXPECT_TRUE(after.slice(0, 3).equal(before.slice(0, 3))) << options.mixed_precision.value_or("no");
      EXPECT_TRUE((after.slice(0, 0, 3) - before.slice(0, 0, 3)).abs().gt(0.1).all().item<bool>());
      return after.detach().clone();
    });
    EXPECT_TRUE(weights[0].equal(weights[1])) << "replicas differ";
  }
}

// join_uneven_inputs contributes zeros for missing batches, which has no sparse counterpart.
TEST(SharedParametersTest, SparseGradientsCannotBeJoined) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.even_batches = false}}, rank);
    auto model = accelerator.prepare(std::make_shared<Words>(true));
    EXPECT_THAT(message_of<ArgumentError>([&] { accelerator.join_uneven_inputs({model}, {}, [] {}); }),
                ::testing::HasSubstr("sparse gradients"));
  });
}

}  // namespace
}  // namespace accel::testing
