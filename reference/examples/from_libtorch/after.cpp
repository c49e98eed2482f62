#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

namespace F = torch::nn::functional;

int train(int, char**) {
  accel::Accelerator accelerator;
  torch::manual_seed(7);
  auto table = torch::randn({2048, 5});  // four columns, and a fifth that follows from them
  table.select(1, 4) = (table.narrow(1, 0, 4) * torch::tensor({1.0, -2.0, 0.5, 3.0})).sum(1);

  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.05);
  auto dataset =
      torch::data::datasets::TensorDataset(table).map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, accel::DataLoader(accel::from_torch(dataset), {.batch_size = 16}));

  double error = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& rows : loader) {
      auto loss = F::mse_loss(model(rows.narrow(1, 0, 4)), rows.narrow(1, 4, 1));
      optimizer.zero_grad();
      accelerator.backward(loss);
      optimizer.step();
      error = accelerator.reduce(loss, "mean").item<double>();
    }
    if (accelerator.is_main_process()) std::printf("epoch %d loss %.9g\n", epoch, error);
  }
  return error < 7 ? 0 : 1;  // it begins at about 14
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
