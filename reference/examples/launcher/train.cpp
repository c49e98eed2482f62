// A program that starts its own ranks: four processes over Gloo, then four simulated ranks in this process, which print
// the same numbers. Unlike Python's notebook_launcher and debug_launcher, which fork, accel executes this program again
// for each rank.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdlib>
#include <iostream>
#include <string>

int train(const std::vector<std::string>& arguments) {
  accel::check_argument(arguments.size() == 1, "train: expected the number of epochs");
  const int epochs = std::atoi(arguments[0].c_str());
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Linear net(3, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  accel::TensorDataset points(torch::rand({400, 3}));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, sgd, accel::DataLoader(points, {.batch_size = 10, .shuffle = true}));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    torch::Tensor loss;
    for (auto& [point] : batches) {
      loss = (model(point) - point.sum(1, /*keepdim=*/true)).square().mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch", epoch, "on", accelerator.num_processes(), "ranks: loss",
                      accelerator.reduce(loss.detach(), "mean").item<double>());
  }
  return 0;
}

// Registers the function. The new processes find it by this name, so it must be registered before main.
const accel::Launchable kTrain("train", train);

int main() {
  accel::run_launched();  // a launched process runs its function here and exits; any other continues
  accel::launch("train", {"3"}, 4);
  accel::notebook_launcher("train", {"3"}, {.num_processes = 4, .simulate = true});
  try {
    accel::debug_launcher("train", {});  // fails on purpose: train expects an argument
  } catch (const accel::Error& error) {
    std::cout << "the failure of a rank is reported: " << error.what() << std::endl;
    return 0;
  }
  return 1;
}
