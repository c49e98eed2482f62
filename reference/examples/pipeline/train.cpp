// Trains a model whose layers the ranks share out: a pipeline inside, data parallelism outside.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/pipeline.hpp>

namespace nn = torch::nn;

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3});
  return accel::TensorDataset(points, points.argmax(1));
}

// `build/train 4` has pipelines of four ranks, `build/train 4 zbv` with another schedule. Without an argument the mesh
// is that of `accel launch` or `sim-run prove --axes pp,dp_replicate`, by default all ranks in data parallelism.
int train(int argc, char** argv) {
  accel::AcceleratorOptions options;
  options.dataloader_config.use_seedable_sampler = true;  // the same order of samples on every number of ranks
  if (argc > 1) {
    const int pp_size = std::atoi(argv[1]), num_ranks = accel::PartialState().num_processes();
    options.parallelism_config = accel::ParallelismConfig{.dp_replicate_size = num_ranks / pp_size, .pp_size = pp_size};
  }
  accel::Accelerator accelerator(options);
  accel::set_seed(42);

  nn::Sequential net(nn::Linear(3, 16));  // complete, and the same on every rank
  for (int layer = 0; layer < 7; ++layer) net->extend(*nn::Sequential(nn::Tanh(), nn::Linear(16, 16)));
  net->push_back(nn::Linear(16, 3));
  // Each rank keeps the layers of its stages.
  auto stages = accel::pipeline_model(accel::pipeline_layers(net), accelerator.mesh(),
                                      {.schedule = argc > 2 ? argv[2] : "1f1b", .micro_batches = 4});
  accel::optim::AdamW adamw(stages->parameters(), torch::optim::AdamWOptions(0.005));
  accel::DataLoader train_loader(make_points(2000), {.batch_size = 16, .shuffle = true, .drop_last = true});
  auto [model, optimizer, batches] = accelerator.prepare(stages, adamw, train_loader);

  double loss = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto sum_of_losses = torch::zeros({});
    for (auto& [point, label] : batches) {
      // Forward and backward of 4 micro-batches.
      sum_of_losses += accelerator.train_pipeline(model, {.inputs = {point}, .targets = {label}},
                                                  [](const at::Tensor& logits, const at::Tensor& target) {
                                                    return nn::functional::cross_entropy(logits, target);
                                                  });
      accelerator.clip_grad_norm_(model.parameters(), 1.0);  // of all stages
      optimizer.step();
      optimizer.zero_grad();
    }
    loss = accelerator.reduce(sum_of_losses, "mean").item<double>() / batches.size();
  }
  accelerator.print("loss", loss);
  return loss < 0.9 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
