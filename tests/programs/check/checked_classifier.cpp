// A classification, right as it is, or with one mistake: `checked_classifier [MISTAKE]`. See check_test.cpp.
#include <torch/nn/modules/activation.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <string>

#include "tests/support/torch.hpp"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kSamples = 200, kEvaluated = 50;
constexpr int kEpochs = 2;

using Dataset = accel::TensorDataset<at::Tensor, at::Tensor>;

Dataset first_samples(const at::Tensor& x, std::int64_t count) {
  const auto rows = x.narrow(0, 0, count);
  return Dataset(rows, (rows.sum(1) > 0).to(at::kLong));
}

// What every part of the program reads.
struct Program {
  explicit Program(std::string mistake) : mistake(std::move(mistake)) {}
  [[nodiscard]] bool has(const char* name) const { return mistake == name; }
  std::string mistake;
  accel::Accelerator accelerator;
};

void seed(const Program& program) {
  if (program.has("not_seeded")) {
    accel::set_seed(static_cast<std::int64_t>(std::random_device()()));
  } else {
    accel::set_seed(1);
  }
}

template <typename Model>
void evaluate(Program& program, Model& model, accel::DataLoaderShard<Dataset>& loader, int epoch) {
  auto& accelerator = program.accelerator;
  if (program.has("evaluation_on_the_main_process") && !accelerator.is_main_process()) return;
  model->eval();
  const torch::NoGradGuard no_grad;
  std::int64_t correct = 0, total = 0;
  for (auto& [x, y] : loader) {
    if (program.has("evaluation_on_the_main_process") || program.has("metric_not_gathered")) {
      correct += (accelerator.unwrap_model(model)->forward(x).argmax(1) == y).sum().template item<std::int64_t>();
      total += y.size(0);
      continue;
    }
    const auto pair = std::pair(model(x).argmax(1), y);
    const auto [guesses, labels] =
        program.has("gather_for_metrics_forgotten") ? accelerator.gather(pair) : accelerator.gather_for_metrics(pair);
    correct += at::eq(guesses, labels).sum().template item<std::int64_t>();
    total += labels.size(0);
  }
  const auto line = fmt::format("epoch {}: {} of {}\n", epoch, correct, total);
  if (program.has("every_rank_prints")) {
    std::cout << line << std::flush;
  } else {
    accelerator.print(line);
  }
}

template <typename Model>
void save(Program& program, Model& model) {
  if (!program.accelerator.is_main_process() && !program.has("every_rank_writes")) return;
  std::ofstream out("model.txt");
  for (const auto& parameter : model->parameters()) out << parameter.sum().template item<double>() << '\n';
}

int train(int argc, char** argv) {
  Program program(argc > 1 ? argv[1] : "");
  auto& accelerator = program.accelerator;
  const int num_ranks = accelerator.num_processes();
  seed(program);
  const auto x = torch::randn({kSamples, 8});
  nn::Sequential net(nn::Linear(8, 16), nn::ReLU(), nn::Dropout(0.1), nn::Linear(16, 2));
  const double rate = program.has("learning_rate_of_all_ranks") ? 1e-2 * num_ranks : 1e-2;
  accel::optim::AdamW adamw(net->parameters(), {.lr = rate});
  accel::DataLoader plain(first_samples(x, kSamples), {.batch_size = 8, .shuffle = true});
  const auto all_steps = plain.size();
  auto [model, optimizer, test] =
      accelerator.prepare(net, adamw, accel::DataLoader(first_samples(x, kEvaluated), {.batch_size = 8}));
  auto loader = accelerator.prepare(accel::DataLoader(first_samples(x, kSamples), {.batch_size = 8, .shuffle = true}));
  const auto steps = program.has("schedule_of_one_ranks_part") ? loader.size() : all_steps;
  accel::LinearLR linear(adamw, /*start_factor=*/1.0, /*end_factor=*/0.1, static_cast<int>(steps) * kEpochs);
  auto scheduler = accelerator.prepare(linear);
  const bool accumulates = program.has("accumulated_loss_not_divided");
  const auto train_on = [&](auto& batches, int epoch) {
    int step = 0;
    model->train();
    for (auto& [inputs, labels] : batches) {
      if (program.has("a_rank_breaks") && epoch == 1 && accelerator.process_index() == 2) break;
      auto loss = nn::functional::cross_entropy(model(inputs), labels);
      if (program.has("loss_divided_by_ranks")) loss = loss / num_ranks;
      accelerator.backward(loss);
      if (program.has("stops_at_its_own_loss") && loss.template item<double>() < 0.01) break;
      if (program.has("a_nan_is_skipped") && std::isnan(loss.template item<double>())) continue;
      if (accumulates && ++step % 2 == 1) continue;
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    if (program.has("loader_not_prepared")) {
      train_on(plain, epoch);
    } else {
      train_on(loader, epoch);
    }
    evaluate(program, model, test, epoch);
  }
  save(program, model);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
