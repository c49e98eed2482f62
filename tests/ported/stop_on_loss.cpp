// Has the form of pytorch/examples' cpp/regression: batches are made in the loop, which ends when the loss is
// small. Each rank has its own loss, but all must end in the same step, or the others would wait in a collective.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace stop_on_loss {
namespace {

constexpr int kDegree = 4, kBatch = 32, kStepsMax = 2000;
constexpr double kSmall = 5e-3;

// The powers of x, from the first on.
at::Tensor features_of(const at::Tensor& x) {
  std::vector<at::Tensor> powers;
  for (int power = 1; power <= kDegree; ++power) powers.push_back(x.pow(power));
  return torch::stack(powers, 1);
}

// The polynomial that the model has to find.
at::Tensor target_of(const at::Tensor& x) {
  return (features_of(x).mv(torch::tensor({0.7, -1.2, 0.4, 2.0})) + 0.3).unsqueeze(1);
}

// As a user of LibTorch would write it for one process.
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

// The same loop with accel. A trigger that any rank sets ends all of them in the same step.
int train(const Arguments&) {
  accel::Accelerator accelerator;
  torch::manual_seed(6);
  torch::nn::Linear net(kDegree, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*lr=*/0.2));
  torch::rand({17 * accelerator.process_index()});  // different batches on every rank
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
