// Trains with a fixed number of logical ranks: any number of ranks ends with the same parameters, to the last bit, also
// if some are lost on the way.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/elastic.hpp>
#include <accel/optim.hpp>
#include <iostream>

namespace nn = torch::nn;

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3});
  return accel::TensorDataset(points, points.argmax(1));
}

int train(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  nn::Sequential net(nn::Linear(3, 32), nn::Tanh(), nn::Dropout(0.1), nn::Linear(32, 3));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.005));
  accel::DataLoader loader(make_points(2000), {.batch_size = 8, .shuffle = true});  // of a logical rank
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  double loss = 0;
  accelerator.elastic({.min_ranks = 1, .logical_ranks = 8}, [&](accel::ElasticRun& run) {
    for (auto& step : run.steps(loader, /*num_epochs=*/8)) {
      // For each logical rank of this rank.
      const auto loss_of_batch = [&](const auto& batch) {
        const auto& [point, label] = batch;
        return nn::functional::cross_entropy(model(point), label);
      };
      // Once, with the mean of all gradients.
      const auto apply = [&] {
        accelerator.clip_grad_norm_(model.parameters(), 1.0);
        optimizer.step();
        optimizer.zero_grad();
      };
      loss = step.update(loss_of_batch, apply).item<double>();
    }
  });
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.detach().to(torch::kDouble).sum().item<double>();
  if (accelerator.is_main_process()) std::cout << "loss " << std::hexfloat << loss << ", sum " << sum << std::endl;
  return loss < 0.9 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
