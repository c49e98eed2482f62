// Properties of accumulation windows under loss_weighting "exact": the gradient of a window equals the gradient of
// one batch that holds all of its samples, for any split over ranks and micro-batches. Accelerate averages the
// means of the micro-batches, which weights a sample by the size of its micro-batch; the tests use that rule as the
// planted bug.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::accumulation_laws {
namespace {

namespace nn = torch::nn;

// A window of micro-batches of any sizes. All ranks have the same number of micro-batches, because those that
// communicate wait for each other; only the sizes differ.
struct Window {
  std::vector<std::vector<std::int64_t>> sizes;  // by rank and micro-batch
  bool sync_each_batch = false, counts_tokens = false;
  [[nodiscard]] int num_ranks() const { return static_cast<int>(sizes.size()); }
};

// Any number of ranks and micro-batches, each of any size, also empty.
Window any_window(int most_ranks) {
  Window window{.sizes = std::vector<std::vector<std::int64_t>>(pick(1, most_ranks + 1)),
                .sync_each_batch = pick(0, 2) == 1,
                .counts_tokens = pick(0, 2) == 1};
  const int micro_batches = pick(1, 5);
  for (auto& of_rank : window.sizes) {
    for (int batch = 0; batch < micro_batches; ++batch) of_rank.push_back(pick<std::int64_t>(1, 8));
  }
  return window;
}

std::string describe(const Window& window) {
  return fmt::format("sizes {}{}{}", fmt::join(window.sizes, " | "), window.sync_each_batch ? ", sync_each_batch" : "",
                     window.counts_tokens ? ", num_items" : "");
}

nn::Sequential small_model() {
  torch::manual_seed(5);
  nn::Sequential model;
  model->push_back(nn::Linear(3, 4));
  model->push_back(nn::Tanh());
  model->push_back(nn::Linear(4, 1));
  model->to(at::kDouble);
  return model;
}

std::vector<at::Tensor> gradients_of(const nn::Sequential& model) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

at::Tensor sample_losses(nn::Sequential& model, const at::Tensor& samples) {
  return model->forward(samples).square().squeeze(1);
}

// Sample i is row i on every rank, so that each rank can compute the reference gradient without communication.
at::Tensor all_samples(const Window& window) {
  std::int64_t count = 0;
  for (const auto& of_rank : window.sizes) count = std::accumulate(of_rank.begin(), of_rank.end(), count);
  torch::manual_seed(9);
  return torch::randn({count, 3}, at::kDouble);
}

// The reference: plain LibTorch on all samples at once.
std::vector<at::Tensor> gradient_of_one_batch(const Window& window) {
  auto model = small_model();
  sample_losses(model, all_samples(window)).mean().backward();
  return gradients_of(model);
}

// Returns the gradient of one window on one rank. The optimizer steps at rate 0, so that the parameters stay at the
// values that `gradient_of_one_batch` uses.
std::vector<at::Tensor> gradient_of_window(const Window& window, RankContext& rank, const std::string& weighting,
                                           const std::string& precision = "no") {
  const auto& sizes = window.sizes[rank.rank];
  Accelerator accelerator(
      {.mixed_precision = precision,
       .gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = static_cast<int>(sizes.size()),
                                                                  .sync_each_batch = window.sync_each_batch},
       .autocast_kwargs = {.enabled = false},
       .loss_weighting = weighting},
      rank);
  auto net = small_model();
  auto model = accelerator.prepare(net);
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto optimizer = accelerator.prepare(sgd);
  std::int64_t begin = 0;
  for (int before = 0; before < rank.rank; ++before)
    // Ranks read consecutive rows: this rank starts after the rows of all lower ranks.
    begin = std::accumulate(window.sizes[before].begin(), window.sizes[before].end(), begin);
  const auto samples = all_samples(window);
  for (const auto size : sizes) {
    auto scope = accelerator.accumulate(model);
    const auto losses = model(samples.narrow(0, begin, size)).square().squeeze(1);
    begin += size;
    accelerator.backward(
        // A factor of 7 stands for tokens per sample. It must cancel out, because only the ratio of the counts
        // matters.
        losses.mean(), {.num_items = weighting == "exact" ? std::optional<double>(size * (window.counts_tokens ? 7 : 1))
                                                          : std::nullopt});
    optimizer.step();  // the prepared optimizer acts only in the last micro-batch
  }
  return gradients_of(net);
}

// The largest difference of any number.
double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

// The tolerance is for float64 with gradients of order 1: every sum has a few roundings of 1e-16.
constexpr double kRounding = 1e-12;

TEST(AccumulationLaws, ExactWeightingGivesTheGradientOfOneBatchHoweverItIsCut) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    expect_property(backend == Backend::kSim ? 60 : 20, [&] {
      const auto window = any_window(backend == Backend::kSim ? 8 : 4);
      RC_LOG(describe(window));
      const auto expected = gradient_of_one_batch(window);
      const auto found = collect_ranks(backend, window.num_ranks(),
                                       [&](RankContext& rank) { return gradient_of_window(window, rank, "exact"); });
      for (const auto& of_rank : found) RC_ASSERT(largest_difference(of_rank, expected) < kRounding);
    });
  }
}

// The scaler multiplies the loss, and the weights divide it again by item counts. A wrong order of these two would
// leave the loss scale in the gradient.
TEST(AccumulationLaws, ALossScaleDoesNotChangeTheGradientOfOneBatch) {
  expect_property(30, [] {
    const auto window = any_window(4);
    RC_LOG(describe(window));
    const auto expected = gradient_of_one_batch(window);
    const auto found = collect_ranks(Backend::kSim, window.num_ranks(), [&](RankContext& rank) {
      return gradient_of_window(window, rank, "exact", "fp16");
    });
    for (const auto& of_rank : found) RC_ASSERT(largest_difference(of_rank, expected) < kRounding);
  });
}

// The planted bug is Accelerate's own rule, the mean of means.
TEST(AccumulationLaws, TheMeanOfMeansIsNotTheGradientOfOneBatch) {
  expect_property_fails("mean of means", 60, [] {
    const auto window = any_window(8);
    const auto expected = gradient_of_one_batch(window);
    const auto found = collect_ranks(Backend::kSim, window.num_ranks(),
                                     [&](RankContext& rank) { return gradient_of_window(window, rank, "accelerate"); });
    for (const auto& of_rank : found) RC_ASSERT(largest_difference(of_rank, expected) < kRounding);
  });
}

// A run through a real loader, where the last step may be short, padded with duplicates, or missing on some ranks.
struct Loading {
  std::int64_t length = 10, batch_size = 3;
  int ranks = 2, steps = 2, epochs = 1;
  int ranks_per_batch = 1;  // of a mesh, which read the same batch
  bool even = true, joins = false, dispatches = false, per_sample = true;
};

// A random length, batch size and number of ranks.
Loading any_loading() {
  Loading loading{.length = pick<std::int64_t>(1, 40),
                  .batch_size = pick<std::int64_t>(1, 7),
                  .ranks = pick(1, 6),
                  .steps = pick(1, 4),
                  .epochs = pick(1, 3)};
  loading.joins = pick(0, 3) == 0;
  loading.dispatches = !loading.joins && pick(0, 3) == 0;
  return loading;
}

std::string describe(const Loading& loading) {
  return fmt::format("length {}, batch {}, ranks {}, steps {}, epochs {}, {} ranks per batch{}{}", loading.length,
                     loading.batch_size, loading.ranks, loading.steps, loading.epochs, loading.ranks_per_batch,
                     loading.joins ? ", joins" : "", loading.dispatches ? ", dispatches" : "");
}

at::Tensor samples_of(const Loading& loading) {
  torch::manual_seed(9);
  return torch::randn({loading.length, 3}, at::kDouble);
}

// The gradients of all windows of a run, and the final learning rate under a schedule counted in samples.
struct Epochs {
  std::vector<std::vector<at::Tensor>> gradients;
  double rate = 0;
};

constexpr std::int64_t kSamplesPerStep = 4;

Epochs run_epochs(const Loading& loading, RankContext& rank) {
  std::optional<ParallelismConfig> mesh;
  std::optional<FullyShardedDataParallelPlugin> plugin;  // a mesh whose ranks share a batch requires one
  if (loading.ranks_per_batch > 1) {
    mesh = {.dp_shard_size = loading.ranks, .tp_size = loading.ranks_per_batch};
    plugin.emplace();
  }
  Accelerator accelerator(
      {.dataloader_config = {.dispatch_batches = loading.dispatches},
       .gradient_accumulation_plugin =
           GradientAccumulationPlugin{.num_steps = loading.steps, .sync_with_dataloader = !loading.joins},
       .parallelism_config = mesh,
       .fsdp_plugin = plugin,
       .loss_weighting = "exact"},
      rank);
  auto net = small_model();
  torch::optim::SGD sgd(net->parameters(), 1.0);
  LambdaLR lambda(sgd, [](int epoch) { return 1.0 / (epoch + 1); });
  const auto samples = samples_of(loading);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, DataLoader(TensorDataset(samples), {.batch_size = loading.batch_size}));
  auto scheduler = accelerator.prepare_scheduler(lambda, {.samples_per_step = kSamplesPerStep});
  Epochs epochs;
  const auto pass = [&] {
    for (auto& [batch] : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(batch).square().squeeze(1));
      if (accelerator.sync_gradients()) {
        // A maximum norm of 1e9 never clips. The call is here because clipping must see the weighted gradient.
        accelerator.clip_grad_norm_(model.parameters(), 1e9);
        epochs.gradients.push_back(gradients_of(net));
      }
      scheduler.step();  // the optimizer does not: windows are compared at the same parameters
      optimizer.zero_grad();
    }
  };
  for (int epoch = 0; epoch < loading.epochs; ++epoch) {
    if (loading.joins) {
      accelerator.join_uneven_inputs({model}, {.even_batches = false}, pass);
    } else {
      pass();
    }
  }
  epochs.rate = optimizer.lr();
  return epochs;
}

// Windows cut the data in order. Each holds every sample once: duplicates that fill the last step must not count.
TEST(AccumulationLaws, EveryWindowOfALoaderHasTheGradientOfItsSamplesOnceEach) {
  expect_property(80, [] {
    auto loading = any_loading();
    loading.joins = false;
    RC_LOG(describe(loading));
    const auto found =
        collect_ranks(Backend::kSim, loading.ranks, [&](RankContext& rank) { return run_epochs(loading, rank); });
    const auto samples = samples_of(loading);
    const auto per_window = loading.batch_size * loading.ranks * loading.steps;
    std::vector<std::vector<at::Tensor>> expected;
    for (int epoch = 0; epoch < loading.epochs; ++epoch) {
      for (std::int64_t begin = 0; begin < loading.length; begin += per_window) {
        auto model = small_model();
        sample_losses(model, samples.narrow(0, begin, std::min(per_window, loading.length - begin))).mean().backward();
        expected.push_back(gradients_of(model));
      }
    }
    for (const auto& of_rank : found) {
      RC_ASSERT(of_rank.gradients.size() == expected.size());
      for (std::size_t window = 0; window < expected.size(); ++window)
        RC_ASSERT(largest_difference(of_rank.gradients[window], expected[window]) < kRounding);
    }
  });
}

// This guards against a schedule that counts steps: it would decay N times slower on N ranks than on one.
TEST(AccumulationLaws, ARateCountedInSamplesIsTheSameForEveryNumberOfRanks) {
  expect_property(60, [] {
    auto loading = any_loading();
    loading.joins = false;
    loading.ranks_per_batch = pick(1, 3);
    RC_LOG(describe(loading));
    const auto steps = loading.length * loading.epochs / kSamplesPerStep;
    const auto found = collect_ranks(Backend::kSim, loading.ranks * loading.ranks_per_batch,
                                     [&](RankContext& rank) { return run_epochs(loading, rank).rate; });
    for (const auto rate : found) RC_ASSERT(rate == 1.0 / static_cast<double>(steps + 1));
  });
}

// A rank without batches still takes part in the count of items, with zero. Otherwise the others wait forever.
TEST(AccumulationLaws, WindowsOfUnevenInputsEndOnEveryRank) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    expect_property(backend == Backend::kSim ? 40 : 10, [&] {
      auto loading = any_loading();
      loading.joins = true;
      loading.dispatches = false;
      loading.steps = 1;
      RC_LOG(describe(loading));
      const auto found =
          collect_ranks(backend, loading.ranks, [&](RankContext& rank) { return run_epochs(loading, rank); });
      torch::manual_seed(9);
      const auto samples = torch::randn({loading.length, 3}, at::kDouble);
      const auto per_step = loading.batch_size * loading.ranks;
      for (std::size_t step = 0; step < found[0].gradients.size(); ++step) {  // rank 0 has the most batches
        // Rank 0 has the most batches, so it alone sees every step. The modulo restarts at each epoch.
        const auto begin = static_cast<std::int64_t>(step) % ((loading.length + per_step - 1) / per_step) * per_step;
        auto model = small_model();
        sample_losses(model, samples.narrow(0, begin, std::min(per_step, loading.length - begin))).mean().backward();
        RC_ASSERT(largest_difference(found[0].gradients[step], gradients_of(model)) < kRounding);
      }
    });
    if (::testing::Test::HasFailure()) return;  // where simulated ranks are stuck, Gloo waits for its time-out
  }
}

// Models a generator and its critic (GAN): two models, each with its own optimizer, step in turn in every
// micro-batch.
struct Adversaries {
  std::vector<at::Tensor> gradients;  // of the second model's first window
  double rate = 0;                    // after the run
};

Adversaries train_adversaries(const Loading& loading, const std::string& weighting, RankContext& rank,
                              bool accumulates = true) {
  Accelerator accelerator({.gradient_accumulation_steps = loading.steps, .loss_weighting = weighting}, rank);
  auto critic = small_model(), generator = small_model();
  torch::optim::SGD critic_sgd(critic->parameters(), 0.5), generator_sgd(generator->parameters(), 1.0);
  LambdaLR lambda(generator_sgd, [](int epoch) { return 1.0 / (epoch + 1); });
  const auto samples = samples_of(loading);
  auto [first, second, first_optimizer, second_optimizer, loader] =
      accelerator.prepare(critic, generator, critic_sgd, generator_sgd,
                          DataLoader(TensorDataset(samples), {.batch_size = loading.batch_size}));
  auto scheduler = accelerator.prepare_scheduler(lambda, {.samples_per_step = kSamplesPerStep});
  Adversaries found;
  for (auto& [batch] : loader) {
    auto window = accumulates ? std::optional(accelerator.accumulate(first, second)) : std::nullopt;
    accelerator.backward(first(batch).square().squeeze(1).mean());
    first_optimizer.step();
    first_optimizer.zero_grad();
    accelerator.backward(second(batch).square().squeeze(1).mean());
    second_optimizer.step();
    if (accelerator.sync_gradients() && found.gradients.empty()) found.gradients = gradients_of(generator);
    scheduler.step();
    second_optimizer.zero_grad();
  }
  found.rate = second_optimizer.lr();
  return found;
}

// Two optimizers step per micro-batch. A count of samples taken per optimizer step would advance the schedule
// twice.
TEST(AccumulationLaws, OptimizersThatStepInTurnCountASampleOnce) {
  expect_property(40, [] {
    auto loading = any_loading();
    loading.joins = false;
    loading.epochs = 1;
    const bool accumulates = pick(0, 2) == 1;
    if (!accumulates) loading.steps = 1;
    RC_LOG(describe(loading) + (accumulates ? "" : ", without accumulate"));
    const auto found = collect_ranks(Backend::kSim, loading.ranks, [&](RankContext& rank) {
      return train_adversaries(loading, "accelerate", rank, accumulates);
    });
    for (const auto& of_rank : found)
      RC_ASSERT(of_rank.rate == 1.0 / static_cast<double>(loading.length / kSamplesPerStep + 1));
  });
}

// The exact weight belongs to one backward. Weights of the first model must not leak into the second model's
// gradient.
TEST(AccumulationLaws, OptimizersThatStepInTurnAreWeightedEach) {
  const Loading loading{.length = 12, .batch_size = 3, .ranks = 2, .steps = 1};
  for (const auto& of_rank :
       collect_ranks(Backend::kSim, 2, [&](RankContext& rank) { return train_adversaries(loading, "exact", rank); })) {
    const auto samples = samples_of(loading);
    auto model = small_model();
    sample_losses(model, samples.narrow(0, 0, 6)).mean().backward();
    EXPECT_LT(largest_difference(of_rank.gradients, gradients_of(model)), kRounding);
  }
  // Windows of several micro-batches cannot be weighted if an optimizer steps inside: the total is not known yet.
  const auto accumulating = Loading{.length = 12, .batch_size = 3, .ranks = 1, .steps = 2};
  const auto rank = make_single_rank();
  EXPECT_THAT(message_of<StateError>([&] { train_adversaries(accumulating, "exact", *rank); }),
              ::testing::HasSubstr("before the first step"));
}

}  // namespace
}  // namespace accel::testing::accumulation_laws
