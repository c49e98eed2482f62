// A training that survives its ranks, for tests that kill some of them: elastic_training FOLDER MIN_RANKS [RANK:MS ...]
// kills each RANK with signal 9 MS milliseconds after its training has begun; with "fails" as the last argument the
// main process fails after the training. Every rank that completes the training writes a file with the sum of all
// parameters, the seconds of the longest step, and how often the ranks have changed.
#include <accel/accel.hpp>
#include <accel/elastic.hpp>
#include <accel/optim.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <thread>

#include "tests/support/torch.hpp"

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kFails = "fails";

void kill_after(std::chrono::milliseconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    raise(SIGKILL);
  }).detach();
}

int train(int argc, char** argv) {
  accel::Accelerator accelerator;
  accel::set_seed(1);
  nn::Sequential net(nn::Linear(3, 64), nn::Dropout(0.1), nn::Linear(64, 2));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto points = torch::randn({640, 3});
  accel::DataLoader loader(accel::TensorDataset(points, points.sum(1).gt(0).to(torch::kLong)),
                           {.batch_size = 4, .shuffle = true});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const int rank = accelerator.process_index();
  double longest = 0;
  int num_changes = 0;
  const auto train_epochs = [&](accel::ElasticRun& run, int num_epochs) {
    for (auto& step : run.steps(loader, num_epochs)) {
      const auto begin = Clock::now();
      step.update(
          [&](auto& batch) { return nn::functional::cross_entropy(model(std::get<0>(batch)), std::get<1>(batch)); },
          [&] {
            optimizer.step();
            optimizer.zero_grad();
          });
      longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    num_changes += run.num_changes();
  };
  const accel::ElasticOptions options{.min_ranks = std::stoi(argv[2]), .logical_ranks = 8};
  accelerator.elastic(options, [&](accel::ElasticRun& run) {
    for (int argument = 3; argument < argc; ++argument) {
      const std::string plan = argv[argument];
      if (plan == kFails) continue;
      if (std::stoi(plan) == rank) kill_after(std::chrono::milliseconds(std::stoi(plan.substr(plan.find(':') + 1))));
    }
    train_epochs(run, 12);
  });
  // A second training, whose collectives are others, with the ranks that are left.
  accelerator.elastic({.min_ranks = 1, .logical_ranks = 8}, [&](accel::ElasticRun& run) {
    run.repeatable([&] { accelerator.wait_for_everyone(); });
    train_epochs(run, 8);
  });
  if (std::string(argv[argc - 1]) == kFails && accelerator.is_main_process()) throw accel::Error("after the training");
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.detach().to(torch::kDouble).sum().item<double>();
  std::ofstream(std::string(argv[1]) + "/rank" + std::to_string(rank))
      << std::hexfloat << sum << ' ' << std::defaultfloat << longest << ' ' << num_changes << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return accel::run(argc, argv, [](int count, char** arguments) { return train(count, arguments); });
}
