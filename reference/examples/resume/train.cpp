// resume FOLDER STEPS: trains for three epochs and stops after STEPS steps. A second run resumes with the next batch of
// the same epoch, in the same order, on every rank, and reaches the bits of a run that never stopped. On another number
// of ranks it resumes after the samples already consumed.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdlib>
#include <string>

namespace {

// State of the program's own that belongs in the checkpoint.
struct Progress {
  int64_t steps = 0;
  accel::Value state_dict() const { return accel::Value::Dict{{"steps", steps}}; }
  void load_state_dict(const accel::Value& state) { steps = state.at("steps").as<int64_t>(); }
};

}  // namespace

int train(int argc, char** argv) {
  if (argc != 3) return 2;
  auto steps = std::atoi(argv[2]);

  accel::Accelerator accelerator(
      {.project_config = {.project_dir = argv[1], .automatic_checkpoint_naming = true, .total_limit = 2}});
  accel::set_seed(42);
  torch::nn::Sequential net(torch::nn::Linear(1, 8), torch::nn::Dropout(0.1), torch::nn::Linear(8, 1));
  torch::optim::AdamW adamw(net->parameters(), /*lr=*/0.01);
  accel::TensorDataset dataset(torch::arange(1000, 1050));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, adamw, accel::DataLoader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = 2}));
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  if (accelerator.has_checkpoint()) accelerator.load_state();  // the newest one

  // iteration() is the epoch in which the loaded state continues; the first loop yields only the rest of that epoch.
  for (auto epoch = batches.iteration(); epoch < 3; ++epoch) {
    for (auto& [numbers] : batches) {
      const auto inputs = numbers.to(torch::kFloat).view({-1, 1}) / 1000;
      auto loss = (model(inputs) - inputs.square()).square().mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      ++progress.steps;

      std::string line;
      const auto seen = accelerator.gather_for_metrics(numbers);
      for (int64_t row = 0; row < seen.size(0); ++row) line += " " + std::to_string(seen[row].item<int64_t>());
      accelerator.print("epoch", epoch, line, " step", progress.steps, "loss", loss.item<double>());
      if (--steps > 0) continue;
      accelerator.save_state();  // project_dir/checkpoints/checkpoint_0, and so on
      return 0;
    }
  }
  return 0;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
