#include <torch/torch.h>

#include <accel/accel.hpp>

namespace F = torch::nn::functional;

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3});
  return accel::TensorDataset(points, points.argmax(1));
}

int train(int, char**) {
  accel::Accelerator accelerator({.gradient_accumulation_steps = 2});
  accel::set_seed(42);
  torch::nn::Sequential net(torch::nn::Linear(3, 32), torch::nn::ReLU(), torch::nn::Linear(32, 3));
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.5);
  accel::DataLoader train_loader(make_points(4000), {.batch_size = 16, .shuffle = true});
  accel::DataLoader eval_loader(make_points(1003), {.batch_size = 16});
  accel::StepLR step_lr(sgd, /*step_size=*/100, /*gamma=*/0.9);
  auto [model, optimizer, batches, eval_batches, scheduler] =
      accelerator.prepare(net, sgd, train_loader, eval_loader, step_lr);

  double accuracy = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    model->train();
    for (auto& [point, label] : batches) {
      auto window = accelerator.accumulate(model);
      auto loss = F::cross_entropy(model(point), label);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), 1.0);
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
    accelerator.print("epoch", epoch, "accuracy", accuracy, "over", seen, "samples");
    if (seen != 1003) return 1;  // every sample once, on any number of ranks
  }
  return accuracy > 0.6 ? 0 : 1;  // guessing gives 0.33
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
