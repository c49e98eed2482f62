// The overhead of the Accelerator: the same training loop on plain LibTorch and through the Accelerator. Both use the
// same optimizer and shuffled data, so the difference is loader, prepare, accumulate and backward.
#include "bench/one_rank_step.hpp"

#include <algorithm>
#include <vector>

#include "bench/median.hpp"

namespace accel::bench {
namespace {

// Shuffles by one permutation and index_select, the cheapest way to shuffle in LibTorch, so that the baseline is fast.
double plain_loop(const Data& data, const Job& job, int steps) {
  auto net = job.make_of_libtorch();
  accel::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  const auto order = torch::randperm(data.images.size(0), at::kLong);
  const auto start = Clock::now();
  for (int step = 0; step < steps; ++step) {
    const auto rows = order.slice(0, step * job.batch, (step + 1) * job.batch);
    const auto images = data.images.index_select(0, rows);
    const auto labels = data.labels.index_select(0, rows);
    auto loss = nn::functional::cross_entropy(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return seconds_since(start) / steps;
}

double accelerated_loop(const Data& data, const Job& job, int steps) {
  const auto context = accel::make_single_rank();
  const accel::RankScope scope(*context);
  accel::Accelerator accelerator;
  auto net = job.make();
  accel::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
  accel::DataLoader loader(accel::TensorDataset(data.images, data.labels), {.batch_size = job.batch, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adam, loader);
  int step = 0;
  const auto start = Clock::now();
  for (auto& [images, labels] : batches) {
    auto window = accelerator.accumulate(model);
    auto loss = nn::functional::cross_entropy(model(images), labels);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (++step == steps) break;
  }
  return seconds_since(start) / steps;
}

}  // namespace

nlohmann::ordered_json measure_one_rank(const Data& data, const Job& job, int rounds) {
  const int steps = 4096 / job.batch / 2;
  // Warm-up: the first steps allocate memory and load code.
  plain_loop(data, job, 8);
  accelerated_loop(data, job, 8);
  // The two loops of a pair run next to each other in alternating order, so their ratio does not depend on the
  // machine's load, nor on which one finds warm caches.
  std::vector<double> plain, accelerated, ratios;
  for (int round = 0; round < rounds; ++round) {
    double a = 0, p = 0;
    if (round % 2 == 0) {
      p = plain_loop(data, job, steps);
      a = accelerated_loop(data, job, steps);
    } else {
      a = accelerated_loop(data, job, steps);
      p = plain_loop(data, job, steps);
    }
    plain.push_back(p);
    accelerated.push_back(a);
    ratios.push_back(a / p);
  }
  return {{"model", job.name},
          {"batch", job.batch},
          {"plain_ms", 1e3 * median(plain)},
          {"accelerator_ms", 1e3 * median(accelerated)},
          {"ratio", median(ratios)},
          {"ratio_of_minima",
           *std::min_element(accelerated.begin(), accelerated.end()) / *std::min_element(plain.begin(), plain.end())}};
}

}  // namespace accel::bench
