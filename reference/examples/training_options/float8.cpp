#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>

namespace F = torch::nn::functional;

// Linear layers in float8, surrounded by bfloat16: fast on GPUs from capability 8.9, emulated on CPUs.
int train(int, char**) {
  accel::Accelerator accelerator({.mixed_precision = "fp8",
                                  .ao_recipe_kwargs = accel::AORecipeKwargs{
                                      .config = accel::Float8LinearConfig::from_recipe_name(
                                          "rowwise"),  // one scale per row; the default is one per tensor
                                      .module_filter_func = [](const torch::nn::LinearImpl& layer, const std::string&) {
                                        return layer.options.in_features() == 64 && layer.options.out_features() == 64;
                                      }}});
  accel::set_seed(42);
  auto layer = [](int64_t inputs, int64_t outputs) { return torch::nn::Linear(inputs, outputs); };
  torch::nn::Sequential net(layer(3, 64), torch::nn::ReLU(), layer(64, 64), torch::nn::ReLU(), layer(64, 3));
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto points = torch::rand({2000, 3});  // the label is the index of the largest coordinate
  accel::DataLoader loader(accel::TensorDataset(points, points.argmax(1)), {.batch_size = 25, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adamw, loader);
  accelerator.print("in float8:", model.float8_layers().front());  // "2"

  double last_loss = 0;
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (auto& [point, label] : batches) {
      auto loss = F::cross_entropy(model(point), label);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      last_loss = loss.item<double>();
    }
  }
  auto loss = accelerator.reduce(torch::tensor(last_loss), "mean").item<double>();
  accelerator.print("loss", loss);
  return loss < 0.4 ? 0 : 1;  // guessing gives 1.1
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
