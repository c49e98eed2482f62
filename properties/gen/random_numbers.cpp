// Draws of every kind of random number that LibTorch offers. The list must equal the one in
// properties/oracle/random_numbers.py, name by name and in the same order, because the second pass draws in
// sequence.
#include "properties/gen/random_numbers.hpp"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include <nlohmann/json.hpp>

#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using Count = std::int64_t;

at::Tensor full(Count count, double value) { return at::full({count}, value); }
at::Tensor integers(Count count, at::ScalarType type) { return at::empty({count}, type); }
at::Tensor one_to(Count last) { return at::arange(1.0, static_cast<double>(last) + 1.0, at::kFloat); }

}  // namespace

// Kinds use different paths of the CPU kernels: scalar and vectorized normals (fewer than 16 elements or not),
// rejection sampling, serial engines.
const std::vector<RandomKind>& random_kinds() {
  static const std::vector<RandomKind> kinds = {
      {"rand", [](Count count) { return at::rand({count}); }},
      {"rand_double", [](Count count) { return at::rand({count}, at::kDouble); }},
      {"rand_half", [](Count count) { return at::rand({count}, at::kHalf); }},
      {"rand_bfloat16", [](Count count) { return at::rand({count}, at::kBFloat16); }},
      {"randn", [](Count count) { return at::randn({count}); }},
      {"randn_small", [](Count) { return at::randn({7}); }},
      {"randn_double", [](Count count) { return at::randn({count}, at::kDouble); }},
      {"randn_bfloat16", [](Count count) { return at::randn({count}, at::kBFloat16); }},
      {"randn_complex", [](Count count) { return at::view_as_real(at::randn({count}, at::kComplexFloat)).flatten(); }},
      {"randint", [](Count count) { return at::randint(0, 1000, {count}); }},
      {"randint_wide", [](Count count) { return at::randint(-(Count{1} << 40), Count{1} << 40, {count}); }},
      {"random_", [](Count count) { return integers(count, at::kLong).random_(); }},
      {"random_int32", [](Count count) { return integers(count, at::kInt).random_(); }},
      {"random_uint8", [](Count count) { return integers(count, at::kByte).random_(); }},
      {"random_float", [](Count count) { return at::empty({count}).random_(); }},
      {"randperm", [](Count count) { return at::randperm(count); }},
      {"bernoulli", [](Count count) { return at::bernoulli(full(count, 0.3)); }},
      {"bernoulli_", [](Count count) { return at::empty({count}).bernoulli_(0.3); }},
      {"dropout", [](Count count) { return at::dropout(at::ones({count}), 0.3, /*train=*/true); }},
      {"native_dropout",
       [](Count count) { return std::get<0>(at::native_dropout(at::ones({count}), 0.3, /*train=*/true)); }},
      {"feature_dropout",
       [](Count count) {
         return at::feature_dropout(at::ones({count, 2, 1}), 0.3, /*train=*/true).flatten();
       }},
      {"alpha_dropout", [](Count count) { return at::alpha_dropout(at::ones({count}), 0.3, /*train=*/true); }},
      {"rrelu", [](Count count) { return at::rrelu(-at::ones({count}), 0.1, 0.9, /*training=*/true); }},
      {"multinomial", [](Count count) { return at::multinomial(one_to(9), count, /*replacement=*/true); }},
      {"multinomial_once", [](Count count) { return at::multinomial(one_to(count), count, /*replacement=*/false); }},
      {"exponential_", [](Count count) { return at::empty({count}).exponential_(1.7); }},
      {"uniform_", [](Count count) { return at::empty({count}).uniform_(-2, 3); }},
      {"normal_", [](Count count) { return at::empty({count}).normal_(0.5, 2); }},
      {"log_normal_", [](Count count) { return at::empty({count}).log_normal_(0.3, 0.8); }},
      {"cauchy_", [](Count count) { return at::empty({count}).cauchy_(0.5, 2); }},
      {"geometric_", [](Count count) { return at::empty({count}).geometric_(0.2); }},
      {"normal_of_means", [](Count count) { return at::normal(at::arange(count, at::kFloat), full(count, 0.5)); }},
      {"poisson", [](Count count) { return at::poisson(full(count, 4.5)); }},
      {"binomial", [](Count count) { return at::binomial(full(count, 20), full(count, 0.3)); }},
      {"gamma", [](Count count) { return at::_standard_gamma(full(count, 2.5)); }},
      {"dirichlet",
       [](Count count) {
         return at::_sample_dirichlet(at::full({count, 3}, 0.7)).flatten();
       }},
      {"linear", [](Count count) { return nn::Linear(3, count)->weight.detach().flatten(); }},
      {"conv", [](Count count) { return nn::Conv2d(2, count, 3)->bias.detach(); }},
      {"embedding", [](Count count) { return nn::Embedding(count, 2)->weight.detach().flatten(); }},
      {"xavier_normal_",
       [](Count count) {
         return nn::init::xavier_normal_(torch::empty({count, 3})).flatten();
       }},
      {"kaiming_normal_",
       [](Count count) {
         return nn::init::kaiming_normal_(torch::empty({count, 3})).flatten();
       }},
  };
  return kinds;
}

namespace {

// Widening is exact, so that the answer has only two dtypes and float16 is compared without printing.
at::Tensor widened(const at::Tensor& numbers) {
  return numbers.to(numbers.is_floating_point() ? at::kDouble : at::kLong);
}

// A training loop interleaves model initialization, dropout, shuffling and free draws, as a program does. It finds
// draws that are in the wrong place, which single draws cannot.
std::vector<at::Tensor> training_loop(RankContext& rank, const RandomNumbersRequest& request) {
  const DataLoaderConfiguration config{.use_seedable_sampler = request.use_seedable_sampler,
                                       .data_seed = request.data_seed};
  Accelerator accelerator({.dataloader_config = config}, rank);
  set_seed(request.seed, {.device_specific = request.device_specific});
  nn::Sequential net;  // one statement per module, because construction draws and argument order is unspecified
  net->push_back(nn::Linear(1, 8));
  net->push_back(nn::Dropout(0.5));
  net->push_back(nn::Linear(8, 1));
  torch::optim::SGD sgd(net->parameters(), /*lr=*/1e-3);
  // 23 samples do not divide by 3 or 4, so that padding and short batches occur on every number of ranks.
  DataLoader train_loader(TensorDataset(at::arange(23)), {.batch_size = 3, .shuffle = true});
  DataLoader eval_loader(TensorDataset(at::arange(23)), {.batch_size = 4});
  auto [model, optimizer, train_batches, eval_batches] = accelerator.prepare(net, sgd, train_loader, eval_loader);

  std::vector<at::Tensor> seen;
  const auto see = [&](const at::Tensor& numbers) { seen.push_back(widened(numbers)); };
  see(at::rand({1}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    model->train();
    for (auto& [ids] : train_batches) {
      accelerator.backward(model(ids.to(at::kFloat).unsqueeze(1)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      see(ids);
      see(at::rand({1}));
      see(at::randint(0, 1 << 20, {1}));
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    for (auto& [ids] : eval_batches) {
      see(accelerator.gather_for_metrics(ids));
      see(at::rand({1}));
    }
  }
  return seen;
}

// Draws a number where it is read.
struct RandomSamples {
  [[nodiscard]] static std::int64_t size() { return 23; }
  [[nodiscard]] static std::pair<std::int64_t, std::int64_t> get(std::int64_t index) {
    return {index, draw_int64(default_generator())};
  }
};

std::vector<at::Tensor> epochs_with_workers(RankContext& rank, const RandomNumbersRequest& request, bool persistent) {
  const DataLoaderConfiguration config{.use_seedable_sampler = request.use_seedable_sampler,
                                       .data_seed = request.data_seed};
  Accelerator accelerator({.dataloader_config = config}, rank);
  set_seed(request.seed, {.device_specific = request.device_specific});
  DataLoader loader(RandomSamples(), {.batch_size = 3,
                                      .shuffle = true,
                                      .num_workers = 2,
                                      .worker_init_fn = [](int) { draw_int64(default_generator()); },
                                      .persistent_workers = persistent});
  auto batches = accelerator.prepare(loader);
  std::vector<at::Tensor> seen;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& [ids, numbers] : batches) {
      seen.push_back(widened(ids));
      seen.push_back(widened(numbers));
    }
    seen.push_back(widened(at::rand({1})));
  }
  return seen;
}

}  // namespace

RandomNumbersRequest parse_random_numbers_request(const std::string& json) {
  const auto object = nlohmann::json::parse(json);
  RandomNumbersRequest request{.seed = object.at("seed"),
                               .device_specific = object.at("device_specific"),
                               .count = object.at("count"),
                               .use_seedable_sampler = object.at("use_seedable_sampler")};
  if (!object.at("data_seed").is_null()) request.data_seed = object.at("data_seed").get<std::int64_t>();
  return request;
}

// First each kind right after seeding, then all kinds in one sequence: the second finds a kind that consumes too
// much.
RandomNumbers random_numbers(RankContext& rank, const RandomNumbersRequest& request) {
  const auto seed = [&] { set_seed(request.seed, {.device_specific = request.device_specific}); };
  RandomNumbers drawn;
  for (const auto& kind : random_kinds()) {
    seed();
    drawn.emplace_back(kind.name, std::vector{widened(kind.draw(request.count))});
  }
  seed();
  for (const auto& kind : random_kinds()) {
    drawn.emplace_back("in sequence: " + kind.name, std::vector{widened(kind.draw(request.count))});
  }
  drawn.emplace_back("training loop", training_loop(rank, request));
  drawn.emplace_back("workers", epochs_with_workers(rank, request, /*persistent=*/false));
  drawn.emplace_back("persistent workers", epochs_with_workers(rank, request, /*persistent=*/true));
  return drawn;
}

}  // namespace accel::testing
