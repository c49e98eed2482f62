// A training of STEPS steps, of which rank 3 is killed after KILL_AFTER seconds: survived_training elastic|restart
// STEPS KILL_AFTER FOLDER. "elastic": the other ranks continue. "restart": the launcher starts all ranks again, from
// the newest checkpoint in FOLDER. KILL_AFTER 0: nobody is killed. elastic_bench starts it. The main process prints the
// seconds from the first step to the end.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/accel.hpp>
#include <accel/elastic.hpp>
#include <accel/optim.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

constexpr int kLogicalRanks = 8, kBatch = 16, kInputs = 64, kSaveEvery = 25, kKilled = 3;

// The clock when the first attempt has begun. It is the same in all processes of a machine.
std::int64_t begin_of(const std::filesystem::path& folder, bool is_main) {
  std::int64_t begin = Clock::now().time_since_epoch().count();
  const auto file = folder / "begin";
  if (std::filesystem::exists(file))
    std::ifstream(file) >> begin;
  else if (is_main)
    std::ofstream(file) << begin;
  return begin;
}

void kill_after(double seconds) {
  if (seconds <= 0) return;
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    raise(SIGKILL);
  }).detach();
}

int train(const std::string& mode, int num_steps, double kill_seconds, const std::filesystem::path& folder) {
  const bool is_elastic = mode == "elastic";
  accel::AcceleratorOptions options;
  if (!is_elastic)
    options.project_config = {.project_dir = folder.string(), .automatic_checkpoint_naming = true, .total_limit = 1};
  accel::Accelerator accelerator(options);
  accel::set_seed(1);
  nn::Sequential net(nn::Linear(kInputs, 1024), nn::Tanh(), nn::Linear(1024, 1024), nn::Tanh(), nn::Linear(1024, 8));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.001));
  auto points = at::randn({kLogicalRanks * kBatch * num_steps, kInputs});
  accel::DataLoader loader(accel::TensorDataset(points, points.argmax(1).remainder(8)),
                           {.batch_size = kBatch, .shuffle = true});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto batches = accelerator.prepare(loader);
  const bool is_restarted = std::filesystem::exists(folder / "checkpoints");
  if (is_restarted) accelerator.load_state();
  const auto begin = begin_of(folder, accelerator.is_main_process());
  if (accelerator.process_index() == kKilled && !is_restarted) kill_after(kill_seconds);
  const auto step_optimizer = [&] {
    optimizer.step();
    optimizer.zero_grad();
  };
  const auto loss_of = [&](auto& batch) {
    return nn::functional::cross_entropy(model(std::get<0>(batch)), std::get<1>(batch));
  };
  if (is_elastic) {
    accelerator.elastic({.min_ranks = 1, .logical_ranks = kLogicalRanks}, [&](accel::ElasticRun& run) {
      for (auto& step : run.steps(loader)) step.update(loss_of, step_optimizer);
    });
  } else {
    std::int64_t step = accelerator.save_iteration() * kSaveEvery;
    for (auto& batch : batches) {
      accelerator.backward(loss_of(batch));
      step_optimizer();
      if (++step % kSaveEvery == 0) accelerator.save_state();
    }
    accelerator.wait_for_everyone();
  }
  const auto nanoseconds = Clock::now().time_since_epoch().count() - begin;
  accelerator.print(fmt::format("{{\"seconds\":{}}}", static_cast<double>(nanoseconds) * 1e-9));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_help = argc == 2 && std::string(argv[1]) == "--help";
  if (argc != 5) {
    fmt::print(is_help ? stdout : stderr,
               "Usage: accel launch --num_processes 8 survived_training elastic|restart STEPS KILL_AFTER FOLDER\n");
    return is_help ? 0 : 2;
  }
  return accel::run(argc, argv, [](int, char** arguments) {
    return train(arguments[1], std::stoi(arguments[2]), std::stod(arguments[3]), arguments[4]);
  });
}
