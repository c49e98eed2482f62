// Trainings with one mistake of a port each, selected by name. See mistaken_training_test.cpp.
#include <accel/accel.hpp>
#include <string>

#include "tests/support/torch.hpp"

namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  Net() : first(register_module("first", nn::Linear(4, 8))), last(register_module("last", nn::Linear(8, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(first(x))); }
  nn::Linear first, last;
};

// No tree_members are declared for this struct, which is the mistake of the two "struct" cases.
struct Outputs {
  at::Tensor value, hidden;
};
// Its output is a struct without tree_members.
struct StructNet : nn::Module {
  StructNet() : layer(register_module("layer", nn::Linear(4, 4))) {}
  Outputs forward(const at::Tensor& x) { return {layer(x), x * 2}; }
  nn::Linear layer;
};

// An input that differs between ranks, so that a model without synchronisation diverges.
at::Tensor input_of(const accel::Accelerator& accelerator) {
  return at::full({3, 4}, 0.1 * (accelerator.process_index() + 1));
}
accel::TensorDataset<at::Tensor> samples() {
  return accel::TensorDataset(at::arange(64).to(at::kFloat).view({16, 4}) / 64);
}

// Prints a digest of every rank's own parameters, one line per rank.
void print_digits(const accel::Accelerator& accelerator, const nn::Module& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters()) sum += parameter.detach().to(at::kDouble).abs().sum().item<double>();
  accelerator.context().print(fmt::format("{:.12g}\n", sum));
}

// Prints the digits of the parameters at the end, which the test compares.
template <typename Model, typename Optimizer, typename Forward>
void train_steps(accel::Accelerator& accelerator, Model& model, Optimizer& optimizer, Forward forward) {
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(forward(input_of(accelerator)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  print_digits(accelerator, *model);
}

void train_structs(accel::AcceleratorOptions options) {
  accel::Accelerator accelerator(std::move(options));
  auto [model, optimizer] =
      accelerator.prepare(std::make_shared<StructNet>(), torch::optim::SGD({at::ones({1}).requires_grad_()}, 0.1));
  accelerator.backward(model(input_of(accelerator)).value.mean());
}

// A sharded run saves, and an unsharded run loads its checkpoint.
void train_with_checkpoint(bool shards, const std::string& folder) {
  accel::Accelerator accelerator(shards
                                     ? accel::AcceleratorOptions{.fsdp_plugin = accel::FullyShardedDataParallelPlugin{}}
                                     : accel::AcceleratorOptions{});
  torch::manual_seed(1);
  Net net;
  torch::optim::Adam adam(net.parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  if (!shards) {
    accelerator.load_state(folder);
    accelerator.print("states", adam.state().size());
    return;
  }
  accelerator.backward(model(input_of(accelerator)).square().mean());
  optimizer.step();
  accelerator.save_state(folder);
}

int train(int argc, char** argv) {
  const std::string mistake = argv[1];
  if (mistake == "struct under FSDP") return train_structs({.fsdp_plugin = accel::FullyShardedDataParallelPlugin{}}), 0;
  if (mistake == "struct under bf16") return train_structs({.mixed_precision = "bf16"}), 0;
  if (argc > 2) return train_with_checkpoint(mistake == "sharded checkpoint", argv[2]), 0;

  accel::Accelerator accelerator;
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  if (mistake == "temporary optimizer") {
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net.parameters(), 0.1));
    train_steps(accelerator, model, optimizer, model);
    return 0;
  }
  if (mistake == "optimizer not prepared") {
    auto model = accelerator.prepare(net);
    train_steps(accelerator, model, sgd, model);
    return 0;
  }
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  if (mistake == "forward of the module") {
    train_steps(accelerator, model, optimizer, [model = model](const at::Tensor& x) { return model->forward(x); });
  } else if (mistake == "module on the stack") {
    train_steps(accelerator, model, optimizer, model);
  } else if (mistake == "loader not prepared") {
    accel::DataLoader loader(samples(), {.batch_size = 4});
    for (auto& [x] : loader) {
      accelerator.backward(model(x).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
