// The options that change the numbers of a training: precision, accumulation, compression of gradients, loss weights
// and the schedule. The schedule and the loss weights do not depend on the number of ranks.
#include <torch/torch.h>

#include <accel/accel.hpp>

namespace F = torch::nn::functional;

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3});
  return accel::TensorDataset(points, points.argmax(1));
}

int train(int, char**) {
  constexpr int64_t kSamples = 4001, kEpochs = 4, kSamplesPerStep = 16;
  accel::Accelerator accelerator({
      .mixed_precision = "fp16",  // also on CPUs, with loss scaling
      .gradient_accumulation_steps = 4,
      .ddp_kwargs = {.comm_hook = "bf16"},           // compress gradients to bfloat16 for the all-reduce
      .grad_scaler_kwargs = {.init_scale = 1024},    // small enough that no step of this short run overflows
      .gradient_guard = {.skip_norm_above = 100.0},  // skip steps with exploding gradients, on all ranks alike
      .loss_weighting = "exact",  // every sample has the same weight, also in short windows and short batches
  });
  accel::set_seed(42);
  torch::nn::Sequential net(torch::nn::Linear(3, 32), torch::nn::ReLU(), torch::nn::Linear(32, 3));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.01));
  accel::DataLoader train_loader(make_points(kSamples), {.batch_size = 16, .shuffle = true});
  accel::DataLoader eval_loader(make_points(1003), {.batch_size = 16});
  auto [model, optimizer, batches, eval_batches] = accelerator.prepare(net, adamw, train_loader, eval_loader);

  // A step of the schedule is 16 samples, so its learning rates do not depend on the number of ranks.
  auto cosine = accel::get_cosine_schedule_with_warmup(
      adamw, {.num_warmup_steps = 50, .num_training_steps = kSamples * kEpochs / kSamplesPerStep});
  auto scheduler = accelerator.prepare_scheduler(*cosine, {.samples_per_step = kSamplesPerStep});

  double accuracy = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    model->train();
    for (auto& [point, label] : batches) {
      auto window = accelerator.accumulate(model);
      // One loss per sample. Duplicates that fill the last step are left out.
      auto losses = F::cross_entropy(model(point), label, F::CrossEntropyFuncOptions().reduction(torch::kNone));
      accelerator.backward(losses);
      accelerator.clip_grad_norm_(model.parameters(), 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    model->eval();
    torch::NoGradGuard no_grad;
    int64_t correct = 0, seen = 0;
    for (auto& [point, label] : eval_batches) {
      auto [guess, truth] = accelerator.gather_for_metrics(std::pair(model(point).argmax(1), label));
      correct += (guess == truth).sum().item<int64_t>();
      seen += truth.size(0);
    }
    accuracy = double(correct) / double(seen);
    accelerator.print("epoch", epoch, "accuracy", accuracy, "rate", optimizer.lr(), "loss scale",
                      accelerator.scaler()->get_scale());
  }
  const bool ends_at_zero = optimizer.lr() < 1e-12;  // on any number of ranks, since every sample counts once per epoch
  return accuracy > 0.6 && ends_at_zero ? 0 : 1;     // guessing gives 0.33
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
