// Shape of pytorch/examples' cpp/regression: batches made on the way, and a loop that ends when the loss is small.
// Ranks must agree on the end: each has a loss of its own.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace stop_on_loss {
namespace {

constexpr int kDegree = 4, kBatch = 32, kStepsMax = 2000;
constexpr double kSmall = 5e-3;

at::Tensor features_of(const at::Tensor& x) {
  std::vector<at::Tensor> powers;
  for (int power = 1; power <= kDegree; ++power) powers.push_back(x.pow(power));
  return torch::stack(powers, 1);
}

at::Tensor target_of(const at::Tensor& x) {
  return (features_of(x).mv(torch::tensor({0.7, -1.2, 0.4, 2.0})) + 0.3).unsqueeze(1);
}

int plain(const Arguments&) {
  torch::manual_seed(6);
  torch::nn::Linear model(kDegree, 1);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.2);
  for (int step = 0; step < kStepsMax; ++step) {
    const auto x = torch::rand({kBatch}) * 2 - 1;
    optimizer.zero_grad();
    auto loss = torch::smooth_l1_loss(model(features_of(x)), target_of(x));
    loss.backward();
    optimizer.step();
    if (loss.item<double>() >= kSmall) continue;
    std::printf("after %d steps loss %.9g\n", step + 1, loss.item<double>());
    return 0;
  }
  return 1;
}

int train(const Arguments&) {
  accel::Accelerator accelerator;
  torch::manual_seed(6);
  torch::nn::Linear net(kDegree, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*lr=*/0.2));
  torch::rand({17 * accelerator.process_index()});  // other batches on every rank
  for (int step = 0; step < kStepsMax; ++step) {
    const auto x = torch::rand({kBatch}) * 2 - 1;
    optimizer.zero_grad();
    auto loss = torch::smooth_l1_loss(model(features_of(x)), target_of(x));
    accelerator.backward(loss);
    optimizer.step();
    if (loss.item<double>() < kSmall) accelerator.set_trigger();
    if (!accelerator.check_trigger()) continue;
    const auto mean = accelerator.reduce(loss.detach(), "mean").item<double>();
    accelerator.print(fmt::format("after {} steps loss {:.9g}", step + 1, mean));
    return 0;
  }
  return 1;
}

}  // namespace
}  // namespace stop_on_loss

const Program kStopOnLoss{"stop_on_loss", stop_on_loss::plain, stop_on_loss::train};

}  // namespace accel::ported
