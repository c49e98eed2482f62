// A training step that is replayed as a CUDA graph on GPUs; on CPUs every call runs it.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>

namespace F = torch::nn::functional;

int train(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Sequential net(torch::nn::Linear(3, 32), torch::nn::ReLU(), torch::nn::Linear(32, 3));
  accel::optim::AdamW adamw(net->parameters(), {.lr = 0.01});
  auto points = torch::rand({4000, 3});
  accel::DataLoader loader(accel::TensorDataset(points, points.argmax(1)), {.batch_size = 16, .shuffle = true});
  accel::StepLR step_lr(adamw, /*step_size=*/100, /*gamma=*/0.9);
  auto [model, optimizer, batches, scheduler] = accelerator.prepare(net, adamw, loader, step_lr);

  auto step = accelerator.capture_step(
      [&, model = model, optimizer = optimizer](const at::Tensor& point, const at::Tensor& label) mutable {
        auto loss = F::cross_entropy(model(point), label);
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      });
  at::Tensor loss;
  for (auto& [point, label] : batches) {
    loss = step(point, label);  // the first 11 calls run the function
    scheduler.step();           // outside, because the function does not run in replays
  }
  accelerator.print("loss", loss.item<float>());
  return loss.item<float>() < 0.9 ? 0 : 1;  // guessing gives 1.1
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
