// A training whose options are drawn at random. It combines the features that interact (accumulation, uneven
// inputs, unused parameters, two models), because bugs show in combinations that no hand-written test has.
#include "properties/gen/small_training.hpp"

#include <fmt/format.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

constexpr std::int64_t kFeatures = 6;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const SmallTraining& training) {
    first = register_module("first", torch::nn::Linear(kFeatures, 8));
    // `branch` is the part that some ranks leave out when find_unused_parameters is on.
    branch = register_module("branch", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 1));
    if (training.has_batch_norm) norm = register_module("norm", torch::nn::BatchNorm1d(8));
    if (training.has_dropout) dropout = register_module("dropout", torch::nn::Dropout(0.3));
  }
  at::Tensor forward(const at::Tensor& x, bool takes_branch) {
    auto hidden = first(x).relu();
    if (norm) hidden = norm(hidden);
    if (dropout) hidden = dropout(hidden);
    if (takes_branch) hidden = hidden + branch(hidden);
    return last(hidden).squeeze(1);
  }
  torch::nn::Linear first{nullptr}, branch{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

AcceleratorOptions options_of(const SmallTraining& training) {
  AcceleratorOptions options;
  if (training.bf16) options.mixed_precision = "bf16";
  options.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = training.accumulation_steps,
                                                                    // With uneven inputs the loaders end at
                                                                    // different steps, so the end of a loader must
                                                                    // not close the window.
                                                                    .sync_with_dataloader = !training.joins_uneven};
  if (training.dispatches) options.dataloader_config.dispatch_batches = true;
  options.ddp_kwargs.find_unused_parameters = training.finds_unused;
  options.ddp_kwargs.gradient_as_bucket_view = training.views_buckets;
  return options;
}

auto samples_of(const SmallTraining& training) {
  auto generator = make_generator(training.seed);
  const auto x = at::rand({training.length, kFeatures}, generator);
  return TensorDataset(x, x.sum(1));
}

std::string bytes_of(const torch::nn::Module& module) {
  std::string bytes;
  for (const auto& parameter : module.parameters()) {
    const auto flat = parameter.detach().contiguous();
    bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  }
  return bytes;
}

}  // namespace

std::string describe(const SmallTraining& t) {
  std::string text = fmt::format("{} ranks, seed {}, length {}, batch {}, {} epochs, accumulation {}", t.num_ranks,
                                 t.seed, t.length, t.batch_size, t.epochs, t.accumulation_steps);
  for (const auto& [is_on, name] :
       {std::pair(t.shuffles, "shuffle"), std::pair(t.dispatches, "dispatch"),
        std::pair(t.joins_uneven, "join_uneven_inputs"), std::pair(t.bf16, "bf16"), std::pair(t.has_dropout, "dropout"),
        std::pair(t.has_batch_norm, "batch norm"), std::pair(t.finds_unused, "find_unused_parameters"),
        std::pair(t.views_buckets, "gradient_as_bucket_view"), std::pair(t.has_second_model, "two models"),
        std::pair(t.clips, "clip"), std::pair(t.evaluates, "evaluation")}) {
    if (is_on) text += fmt::format(", {}", name);
  }
  return text;
}

SmallTraining any_training(int most_ranks) {
  const auto coin = [] { return pick(0, 2) == 1; };
  SmallTraining training;
  training.num_ranks = pick(1, most_ranks + 1);
  training.seed = pick<std::uint64_t>(0, 1000000);
  training.batch_size = pick<std::int64_t>(2, 4);
  training.length = pick<std::int64_t>(training.batch_size, 25);
  training.epochs = pick(1, 3);
  training.accumulation_steps = pick(1, 4);
  training.shuffles = coin();
  training.joins_uneven = pick(0, 3) == 0;
  // Ranks leave an uneven epoch at different places in their windows, so the next epoch would synchronize at
  // different batches.
  if (training.joins_uneven && training.accumulation_steps > 1) training.epochs = 1;
  training.dispatches = !training.joins_uneven && pick(0, 3) == 0;
  training.bf16 = coin();
  // A rank with fewer samples draws fewer numbers, so its generator differs. Batch norm needs two samples per
  // batch.
  training.has_dropout = !training.joins_uneven && coin();
  training.has_batch_norm =
      !training.joins_uneven && !training.dispatches && training.length % training.batch_size == 0 && coin();
  training.finds_unused = coin();
  training.views_buckets = coin();
  training.has_second_model = coin();
  training.clips = coin();
  training.evaluates = coin();
  return training;
}

std::string train(const SmallTraining& training, RankContext& rank) {
  Accelerator accelerator(options_of(training), rank);
  set_seed(training.seed);
  Net net(training), other(training);
  // A rank that makes fewer updates has another momentum, so its model would differ from there on.
  const double momentum = training.joins_uneven ? 0 : 0.5;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(momentum)),
      other_sgd(other->parameters(), 0.05);
  DataLoader plain(samples_of(training), {.batch_size = training.batch_size, .shuffle = training.shuffles});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, plain);
  std::optional<decltype(accelerator.prepare(other))> second;
  std::optional<decltype(accelerator.prepare(other_sgd))> second_optimizer;
  if (training.has_second_model) {
    second.emplace(accelerator.prepare(other));
    second_optimizer.emplace(accelerator.prepare(other_sgd));
  }
  int step = 0;
  const auto update = [&](auto& its_model, auto& its_optimizer, const at::Tensor& x, const at::Tensor& y) {
    // Without find_unused_parameters every rank must use every parameter.
    const bool takes_branch = !training.finds_unused || (rank.rank + step) % 2 == 0;
    accelerator.backward((its_model(x, takes_branch) - y).square().mean());
    if (training.clips && accelerator.sync_gradients()) accelerator.clip_grad_norm_(its_model.parameters(), 0.5);
    its_optimizer.step();
    its_optimizer.zero_grad();
  };
  const auto epoch = [&] {
    for (auto& [x, y] : loader) {
      auto window = second ? accelerator.accumulate(model, *second) : accelerator.accumulate(model);
      update(model, optimizer, x, y);
      if (second) update(*second, *second_optimizer, x, y);
      ++step;
    }
  };
  for (int done = 0; done < training.epochs; ++done) {
    model->train();
    if (training.joins_uneven) {
      accelerator.join_uneven_inputs(
          second ? std::vector<Accelerator::Joinable>{model, *second} : std::vector<Accelerator::Joinable>{model},
          {.even_batches = false}, epoch);
    } else {
      epoch();
    }
    if (!training.evaluates) continue;
    // Evaluation runs inside the training on the same loader: it must not disturb the loader's place or gather
    // duplicates.
    model->eval();
    const torch::NoGradGuard no_grad;
    std::int64_t seen = 0;
    for (auto& [x, y] : loader) seen += accelerator.gather_for_metrics(model(x, true) - y).size(0);
    check_state(seen == training.length, "evaluation gathered {} samples, expected {}", seen, training.length);
  }
  accelerator.wait_for_everyone();
  // Bytes and not values: two schedules of one training must agree in the sign of zero too.
  return bytes_of(*net) + (second ? bytes_of(*other) : "");
}

}  // namespace accel::testing
