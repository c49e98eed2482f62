#include "reference/models/image_models.hpp"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/pooling.h>

#include <functional>
#include <string>
#include <vector>

#include "reference/modules/call.hpp"
#include "reference/parallel/sync_batch_norm.hpp"

// The MLP and CNN for MNIST and the ResNet for CIFAR. Names, order of construction and order of calls are those of the
// Python models in properties/oracle: they decide checkpoint keys, random weights and the order of gradients.
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

// No bias: every convolution is followed by a norm, which would cancel it.
nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

// All norms of the network are created here: over the rank's own batch, or over those of all ranks. A callback, since
// the two types have no common base class that register_module accepts.
template <typename Use>
void with_norm(std::int64_t channels, bool over_ranks, Use&& use) {
  if (over_ranks) {
    use(SyncBatchNorm(SyncBatchNormOptions(channels)));
  } else {
    use(nn::BatchNorm2d(channels));
  }
}

using BatchNorm = std::function<at::Tensor(const at::Tensor&)>;

// A member variable would fix the type of the norm. A closure over the registered module hides it.
BatchNorm register_norm(nn::Module& owner, const std::string& name, std::int64_t channels, bool over_ranks) {
  BatchNorm norm;
  with_norm(channels, over_ranks, [&](auto module) {
    norm = [module = owner.register_module(name, module)](const at::Tensor& values) mutable {
      return call(module, values);
    };
  });
  return norm;
}

// Two 3x3 convolutions around a shortcut. The shortcut is a 1x1 convolution where the shape changes, else the identity.
class BasicBlockImpl : public nn::Module {
 public:
  BasicBlockImpl(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, bool norms_over_ranks) {
    conv1_ = register_module("conv1", convolution(inputs, outputs, 3, stride));
    bn1_ = register_norm(*this, "bn1", outputs, norms_over_ranks);
    conv2_ = register_module("conv2", convolution(outputs, outputs, 3, 1));
    bn2_ = register_norm(*this, "bn2", outputs, norms_over_ranks);
    // Registered even if empty, as in the Python model, whose state_dict and module names this must match.
    register_module("shortcut", shortcut_);
    if (stride == 1 && inputs == outputs) return;
    shortcut_->push_back(convolution(inputs, outputs, 1, stride));
    with_norm(outputs, norms_over_ranks, [&](auto module) { shortcut_->push_back(module); });
  }

  at::Tensor forward(const at::Tensor& images) {
    // The last ReLU comes after the addition, as in the original (post-activation) ResNet.
    const auto inner = bn2_(call(conv2_, at::relu(bn1_(call(conv1_, images)))));
    return at::relu(inner + (shortcut_->is_empty() ? images : call(shortcut_, images)));
  }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm bn1_, bn2_;
  nn::Sequential shortcut_;
};
TORCH_MODULE(BasicBlock);

// Only the first block of a stage changes the resolution and the number of channels.
nn::Sequential stage(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, bool norms_over_ranks) {
  nn::Sequential blocks;
  blocks->push_back(BasicBlock(inputs, outputs, stride, norms_over_ranks));
  blocks->push_back(BasicBlock(outputs, outputs, 1, norms_over_ranks));
  return blocks;
}

class ResNet : public Model {
 public:
  explicit ResNet(const ResNetOptions& options) {
    const auto width = options.width;
    const bool norms_over_ranks = options.sync_batchnorm;
    conv1_ = register_module("conv1", convolution(3, width, 3, 1));
    bn1_ = register_norm(*this, "bn1", width, norms_over_ranks);
    layer1_ = register_module("layer1", stage(width, width, 1, norms_over_ranks));
    layer2_ = register_module("layer2", stage(width, 2 * width, 2, norms_over_ranks));
    layer3_ = register_module("layer3", stage(2 * width, 4 * width, 2, norms_over_ranks));
    layer4_ = register_module("layer4", stage(4 * width, 8 * width, 2, norms_over_ranks));
    // The order of these statements is that of the Python constructor, which decides the random weights.
    linear_ = register_module("linear", Linear(8 * width, options.num_classes));
  }

  at::Tensor forward(const at::Tensor& images) override {
    auto values = at::relu(bn1_(call(conv1_, images)));
    for (const auto* layer : {&layer1_, &layer2_, &layer3_, &layer4_}) values = call(*layer, values);
    // A 32x32 image is 4x4 here, so this is global average pooling.
    return call(linear_, at::avg_pool2d(values, 4).flatten(1));
  }

 private:
  nn::Conv2d conv1_{nullptr};
  BatchNorm bn1_;
  nn::Sequential layer1_, layer2_, layer3_, layer4_;
  Linear linear_{nullptr};
};

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

std::shared_ptr<Model> resnet18(const ResNetOptions& options) { return std::make_shared<ResNet>(options); }

}  // namespace accel::models
