#include "sim/programs/image_networks.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/pooling.h>

#include <string>
#include <vector>

#include "reference/modules/call.hpp"

namespace accel::programs {
namespace {

namespace nn = torch::nn;

class Layers : public Network {
 public:
  template <typename Layer>
  void push_back(Layer layer) { layers_.emplace_back(register_module(std::to_string(layers_.size()), std::move(layer))); }

  at::Tensor forward(const at::Tensor& images) override {
    auto values = images;
    for (auto& layer : layers_) values = call(layer, values);
    return values;
  }

 private:
  std::vector<nn::AnyModule> layers_;
};

void add_convolution(Layers& layers, std::int64_t inputs, std::int64_t outputs) {
  layers.push_back(nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 3).padding(1)));
  layers.push_back(nn::ReLU());
  layers.push_back(nn::MaxPool2d(2));
}

}  // namespace

std::shared_ptr<Network> make_image_network(const ModelConfig& config) {
  auto layers = std::make_shared<Layers>();
  if (config.name == "mlp") {
    layers->push_back(nn::Flatten());
    layers->push_back(Linear(784, config.hidden));
    layers->push_back(nn::ReLU());
  } else {
    add_convolution(*layers, 1, 16);
    add_convolution(*layers, 16, 32);
    layers->push_back(nn::Flatten());
  }
  layers->push_back(nn::Dropout(config.dropout));
  layers->push_back(Linear(config.name == "mlp" ? config.hidden : 32 * 7 * 7, 10));
  return layers;
}

}  // namespace accel::programs
