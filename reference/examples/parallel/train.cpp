// Trains a model whose layers are divided over the ranks: tensor parallelism inside, data parallelism outside.
// `sim-run prove --ranks 4 -- build/train` compares it with one rank under every layout.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/parallel.hpp>

namespace F = torch::nn::functional;
using namespace accel::parallel;

// The inner features are divided over the ranks of "tp".
struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl(int64_t width, const accel::DeviceMesh& mesh) : group(mesh["tp"]) {
    expansion =
        register_module("expansion", ColumnParallelLinear(ParallelLinearOptions{.in = width, .out = 4 * width}, group));
    projection =
        register_module("projection", RowParallelLinear(ParallelLinearOptions{.in = 4 * width, .out = width}, group));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // Types state which rank holds what: Replicated -> Copied -> Sharded<-1> -> Replicated. Without `copy` or without
    // the sum in `projection` this does not compile.
    const auto inner = accel::call(expansion, copy(Replicated{x}, group));
    const auto active = elementwise(inner, [](const torch::Tensor& part) { return torch::relu(part); });
    return x + accel::call(projection, active).local;
  }
  accel::Group group;
  ColumnParallelLinear expansion{nullptr};
  RowParallelLinear projection{nullptr};
};
TORCH_MODULE(FeedForward);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const accel::DeviceMesh& mesh) {
    first = register_module("first", torch::nn::Linear(3, 16));
    feed_forward = register_module("feed_forward", FeedForward(16, mesh));
    last = register_module("last", torch::nn::Linear(16, 3));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(accel::call(feed_forward, first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  FeedForward feed_forward{nullptr};
};
TORCH_MODULE(Net);

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3}, torch::kFloat64);
  return accel::TensorDataset(points, points.argmax(1));
}

// `build/train 2` divides layers over pairs of ranks. Without an argument the mesh is that of `accel launch` or
// `sim-run prove`, by default all ranks in data parallelism.
int train(int argc, char** argv) {
  accel::AcceleratorOptions options;
  options.dataloader_config.use_seedable_sampler = true;  // the same order of samples on every number of ranks
  if (argc > 1) {
    const int tp_size = std::atoi(argv[1]), num_ranks = accel::PartialState().num_processes();
    options.parallelism_config = accel::ParallelismConfig{.dp_replicate_size = num_ranks / tp_size, .tp_size = tp_size};
  }
  accel::Accelerator accelerator(options);
  accel::set_seed(42);
  Net net(accelerator.mesh());  // complete weights are drawn, and each rank keeps its part
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  accel::DataLoader train_loader(make_points(2000), {.batch_size = 16, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adamw, train_loader);

  auto sum_of_losses = torch::zeros({}, torch::kFloat64);
  for (int epoch = 0; epoch < 2; ++epoch) {
    sum_of_losses.zero_();
    for (auto& [point, label] : batches) {
      auto loss = F::cross_entropy(model(point), label);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model.parameters(), 1.0);  // counts each parameter once
      optimizer.step();
      optimizer.zero_grad();
      sum_of_losses += loss.detach();
    }
  }
  const auto loss = accelerator.reduce(sum_of_losses, "mean").item<double>() / batches.size();  // of the last epoch
  const auto weights = accelerator.get_state_dict(model);  // complete tensors, also of divided layers
  const auto rows = weights[2].second.size(0);
  accelerator.print("rows of", weights[2].first, rows, "loss", loss);
  return loss < 0.9 && rows == 64 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
