#include "reference/models/image_models.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/pooling.h>

#include <string>
#include <vector>

#include "reference/modules/call.hpp"

// Names, order of construction and order of calls are those of the Python models in properties/oracle: they decide
// checkpoint keys, random weights and the order of gradients.
namespace accel::models {
namespace {

namespace nn = torch::nn;

// A sequence of layers under the names "0", "1", ... of Python's Sequential. Not torch::nn::Sequential, whose forward
// is a template and cannot override Model::forward.
class Layers : public Model {
 public:
  template <typename Layer>
  void push_back(Layer layer) {
    layers_.emplace_back(register_module(std::to_string(layers_.size()), std::move(layer)));
  }

  at::Tensor forward(const at::Tensor& images) override {
    auto values = images;
    for (auto& layer : layers_) values = call(layer, values);
    return values;
  }

 private:
  std::vector<nn::AnyModule> layers_;
};

// One statement per layer, so that weights are drawn in Python's order: see model.hpp.
void add_convolution(Layers& layers, std::int64_t inputs, std::int64_t outputs) {
  layers.push_back(nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 3).padding(1)));
  layers.push_back(nn::ReLU());
  layers.push_back(nn::MaxPool2d(2));
}

}  // namespace

std::shared_ptr<Model> mlp(const MlpOptions& options) {
  auto layers = std::make_shared<Layers>();
  layers->push_back(nn::Flatten());
  // 784 = 28 * 28 pixels.
  layers->push_back(Linear(784, options.hidden));
  layers->push_back(nn::ReLU());
  layers->push_back(nn::Dropout(options.dropout));
  layers->push_back(Linear(options.hidden, 10));
  return layers;
}

std::shared_ptr<Model> cnn(const CnnOptions& options) {
  auto layers = std::make_shared<Layers>();
  add_convolution(*layers, 1, 16);
  add_convolution(*layers, 16, 32);
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Dropout(options.dropout));
  // Two poolings reduce 28x28 to 7x7.
  layers->push_back(Linear(32 * 7 * 7, 10));
  return layers;
}

}  // namespace accel::models
