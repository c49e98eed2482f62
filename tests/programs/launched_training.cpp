// A small training under launchers: `launched_training FOLDER`. It saves into FOLDER every few steps, resumes from
// the newest checkpoint there, and prints a hash of the parameters at the end. In the first attempt rank R writes
// FOLDER/reached.R at step kPause. It waits while FOLDER/pause exists and FOLDER/go does not, so that a test can
// kill it.
#include <unistd.h>

#include <accel/accel.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "reference/config/environment.hpp"
#include "reference/files/sha256.hpp"
#include "tests/support/torch.hpp"

namespace {

namespace fs = std::filesystem;

// 22 lies between two checkpoints, so a resumed run repeats two steps.
constexpr int kSteps = 40, kSaveEvery = 5, kPause = 22;

void pause_if_asked(const fs::path& folder, int rank) {
  if (!fs::exists(folder / "pause") || accel::environment("TORCHELASTIC_RESTART_COUNT").value_or("0") != "0") return;
  std::ofstream(folder / ("reached." + std::to_string(rank))) << getpid();
  while (!fs::exists(folder / "go")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

std::string hash_of(const std::vector<at::Tensor>& parameters) {
  accel::Sha256 hash;
  for (const auto& parameter : parameters) hash.update(parameter.const_data_ptr(), parameter.nbytes());
  return hash.hex();
}

int train(int argc, char** argv) {
  if (argc != 2) return 2;
  const fs::path folder = argv[1];
  accel::Accelerator accelerator(
      {.project_config = {.project_dir = folder.string(), .automatic_checkpoint_naming = true, .total_limit = 2}});
  accel::set_seed(42);
  // Dropout makes the parameters depend on the restored random state.
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Dropout(0.1), torch::nn::Linear(16, 4));
  torch::optim::AdamW adamw(net->parameters(), /*lr=*/0.01);
  accel::TensorDataset dataset(torch::rand({kSteps * 2 * accelerator.num_processes(), 6}));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, adamw, accel::DataLoader(dataset, {.batch_size = 2, .shuffle = true}));
  int64_t step = 0;
  if (fs::exists(folder / "checkpoints")) {
    accelerator.load_state();
    step = accelerator.save_iteration() * kSaveEvery;
    accelerator.print("continues at step", step);
  }
  for (auto& [points] : batches) {
    if (step == kPause) pause_if_asked(folder, accelerator.process_index());
    accelerator.backward(model(points).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    if (++step % kSaveEvery == 0) accelerator.save_state();
  }
  accelerator.print("parameters", hash_of(model.parameters()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
