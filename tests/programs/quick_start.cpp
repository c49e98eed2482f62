#include <torch/torch.h>

#include <accel/accel.hpp>

int train(int, char**) {
  accel::Accelerator accelerator({.gradient_accumulation_steps = 2});
  accel::set_seed(42);
  auto images = torch::rand({1000, 1, 28, 28}), labels = torch::randint(0, 10, {1000});

  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 10));
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  accel::StepLR step_lr(sgd, /*step_size=*/10);
  accel::DataLoader loader(accel::TensorDataset(images, labels), {.batch_size = 32, .shuffle = true});
  auto [model, optimizer, batches, scheduler] = accelerator.prepare(net, sgd, loader, step_lr);

  for (auto& [image, label] : batches) {
    auto window = accelerator.accumulate(model);
    auto loss = torch::nn::functional::cross_entropy(model(image), label);
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  model->eval();
  torch::NoGradGuard no_grad;
  int64_t correct = 0, seen = 0;
  for (auto& [image, label] : batches) {
    auto [guess, truth] = accelerator.gather_for_metrics(std::pair(model(image).argmax(-1), label));
    correct += (guess == truth).sum().item<int64_t>();
    seen += truth.size(0);
  }
  accelerator.print("accuracy", double(correct) / double(seen), "over", seen, "samples");
  return seen == 1000 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
