// saving_training FOLDER NAMES SAVES ACKNOWLEDGED RANK MICROSECONDS: checks what it loads, then trains and saves until
// RANK kills its process. Each step adds 1 to every weight, so that a mixture of two checkpoints is found. NAMES: one
// or automatic; SAVES: sync or async. Appends "loaded STEP" to ACKNOWLEDGED, and each step whose checkpoint is
// complete.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accel.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace {

struct Progress {
  std::int64_t steps = 0;
  [[nodiscard]] accel::Value state_dict() const { return accel::Value::Dict{{"steps", steps}}; }
  void load_state_dict(const accel::Value& state) { steps = state.at("steps").as<std::int64_t>(); }
};

int train(int argc, char** argv) {
  if (argc != 7) return 2;
  const std::string folder = argv[1], acknowledged = argv[4];
  const bool is_automatic = std::string(argv[2]) == "automatic", is_async = std::string(argv[3]) == "async";
  accel::AcceleratorOptions options;
  if (is_automatic)
    options.project_config = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2};
  accel::Accelerator accelerator(options);
  torch::nn::Linear net(torch::nn::LinearOptions(64, 64).bias(false));
  {
    const torch::NoGradGuard no_grad;
    net->weight.zero_();
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  const auto tell = [&](const std::string& text) {
    if (accelerator.is_main_process()) std::ofstream(acknowledged, std::ios::app) << text << std::endl;
  };
  const auto path = is_automatic ? "" : folder + "/state";
  if (accelerator.has_checkpoint(path)) {
    accelerator.load_state(path);
    const auto weights = net->weight.detach();
    if (weights.min().item<double>() != progress.steps || weights.max().item<double>() != progress.steps)
      throw accel::Error("the checkpoint mixes steps");
  }
  tell("loaded " + std::to_string(progress.steps));
  accelerator.wait_for_everyone();  // until rank 0 has reported it
  if (accelerator.process_index() == std::stoi(argv[5])) {
    std::thread([time = std::chrono::microseconds(std::stoi(argv[6]))] {
      std::this_thread::sleep_for(time);
      raise(SIGKILL);
    }).detach();
  }
  for (;;) {
    const auto saved = progress.steps;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(-model(torch::ones({1, 64})).sum());
      optimizer.step();
      ++progress.steps;
    }
    accelerator.save_state(path, {.async = is_async});
    // An asynchronous save is complete once the next one begins.
    const auto complete = is_async ? saved : progress.steps;
    if (complete > 0) tell(std::to_string(complete));
  }
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
