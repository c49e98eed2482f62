// A training that survives its ranks, for tests that kill some of them: elastic_training FOLDER MIN_RANKS [RANK:MS ...]
// kills each RANK with signal 9 MS milliseconds after its training has begun, but not if it was started anew. Further
// words: with "fails" the main process fails after the training, with "other" a rank that was started anew has another
// model. Every rank that completes the training writes a file with the sum of all parameters, of all losses and of what
// evaluations have seen, the seconds of the longest step, how often the ranks have changed, and the steps that it has
// replayed.
#include <accel/accel.hpp>
#include <accel/elastic.hpp>
#include <accel/optim.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/torch.hpp"

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

namespace {

// What evaluations have seen, which a rank that joins receives.
struct Seen {
  double sum = 0;
  [[nodiscard]] accel::Value state_dict() const { return sum; }
  void load_state_dict(const accel::Value& state) { sum = state.as<double>(); }
};

double sum_of(const std::vector<torch::Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += tensor.detach().to(torch::kDouble).sum().item<double>();
  return sum;
}

void kill_after(std::chrono::milliseconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    raise(SIGKILL);
  }).detach();
}

int train(int argc, char** argv) {
  const std::vector<std::string> words(argv + 3, argv + argc);
  const auto has = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  accel::Accelerator accelerator;
  const int rank = accelerator.context().rank_in_job;
  const bool is_started_anew = accelerator.context().joins_elastic;
  accel::set_seed(1);
  const int hidden = has("other") && is_started_anew ? 65 : 64;
  nn::Sequential net(nn::Linear(3, hidden), nn::Dropout(0.1), nn::Linear(hidden, 2));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto points = torch::randn({640, 3});
  accel::DataLoader loader(accel::TensorDataset(points, points.sum(1).gt(0).to(torch::kLong)),
                           {.batch_size = 4, .shuffle = true});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  double longest = 0, losses = 0;
  int num_changes = 0, num_replayed = 0;
  Seen seen;
  accelerator.register_for_checkpointing(seen);
  const auto train_epochs = [&](accel::ElasticRun& run, int num_epochs) {
    for (auto& step : run.steps(loader, num_epochs)) {
      const auto begin = Clock::now();
      num_replayed += run.is_replaying();
      const auto loss = step.update(
          [&](auto& batch) { return nn::functional::cross_entropy(model(std::get<0>(batch)), std::get<1>(batch)); },
          [&] {
            optimizer.step();
            optimizer.zero_grad();
          });
      losses += loss.item<double>();
      longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
      if (run.num_steps() % 30 != 0) continue;
      double now = 0;
      run.repeatable([&] {
        const auto sums = accelerator.gather(torch::tensor({sum_of(net->parameters())}, torch::kDouble));
        now = sums.max().item<double>();
      });
      seen.sum += now;
    }
    num_changes += run.num_changes();
  };
  const accel::ElasticOptions options{.min_ranks = std::stoi(argv[2]), .logical_ranks = 8};
  accelerator.elastic(options, [&](accel::ElasticRun& run) {
    for (const auto& word : words) {
      const auto colon = word.find(':');
      if (colon == std::string::npos || is_started_anew || std::stoi(word) != rank) continue;
      kill_after(std::chrono::milliseconds(std::stoi(word.substr(colon + 1))));
    }
    train_epochs(run, 12);
  });
  // A second training, whose collectives are others, with the ranks that are left.
  accelerator.elastic({.min_ranks = 1, .logical_ranks = 8}, [&](accel::ElasticRun& run) {
    run.repeatable([&] { accelerator.wait_for_everyone(); });
    train_epochs(run, 8);
  });
  if (has("fails") && accelerator.is_main_process()) throw accel::Error("after the training");
  std::ofstream(std::string(argv[1]) + "/rank" + std::to_string(rank))
      << std::hexfloat << sum_of(net->parameters()) << ' ' << losses << ' ' << seen.sum << ' ' << std::defaultfloat
      << longest << ' ' << num_changes << ' ' << num_replayed << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return accel::run(argc, argv, [](int count, char** arguments) { return train(count, arguments); });
}
