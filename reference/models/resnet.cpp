#include "reference/models/resnet.hpp"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "reference/modules/call.hpp"
#include "reference/parallel/sync_batch_norm.hpp"

// Names, order of construction and order of calls are those of the Python models in properties/oracle/resnet.py: they
// decide checkpoint keys, random weights and the order of gradients.
namespace accel::models {
namespace {

namespace nn = torch::nn;

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

// The 1x1 convolution of a shortcut where the shape changes; empty where it does not.
nn::Sequential projection(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, bool norms_over_ranks) {
  nn::Sequential layers;
  if (stride == 1 && inputs == outputs) return layers;
  layers->push_back(convolution(inputs, outputs, 1, stride));
  with_norm(outputs, norms_over_ranks, [&](auto module) { layers->push_back(module); });
  return layers;
}

struct BlockShape {
  std::int64_t inputs, channels, stride;
  bool norms_over_ranks, is_cifar;
};

// Convolutions around a shortcut.
class ResidualBlock : public nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) {
    auto values = images;
    for (std::size_t layer = 0; layer < convolutions_.size(); ++layer) {
      if (layer > 0) values = at::relu(values);
      values = norms_[layer](call(convolutions_[layer], values));
    }
    // The last ReLU comes after the addition, as in the original (post-activation) ResNet.
    return at::relu(values + (shortcut_->is_empty() ? images : call(shortcut_, images)));
  }

 protected:
  struct Layer {
    std::int64_t outputs, size, stride;
  };
  // torchvision creates the shortcut before the block, and registers only one that is not empty.
  ResidualBlock(const BlockShape& shape, std::initializer_list<Layer> layers) : shortcut_(nn::Sequential()) {
    const auto outputs = std::prev(layers.end())->outputs;
    const auto make_shortcut = [&] { return projection(shape.inputs, outputs, shape.stride, shape.norms_over_ranks); };
    if (!shape.is_cifar) shortcut_ = make_shortcut();
    auto inputs = shape.inputs;
    for (const auto& layer : layers) {
      const auto number = std::to_string(convolutions_.size() + 1);
      convolutions_.push_back(
          register_module("conv" + number, convolution(inputs, layer.outputs, layer.size, layer.stride)));
      norms_.push_back(register_norm(*this, "bn" + number, layer.outputs, shape.norms_over_ranks));
      inputs = layer.outputs;
    }
    if (shape.is_cifar) shortcut_ = make_shortcut();
    if (shape.is_cifar || !shortcut_->is_empty())
      register_module(shape.is_cifar ? "shortcut" : "downsample", shortcut_);
  }

 private:
  std::vector<nn::Conv2d> convolutions_;
  std::vector<BatchNorm> norms_;
  nn::Sequential shortcut_;
};

struct BasicBlockImpl : ResidualBlock {
  static constexpr std::int64_t kExpansion = 1;
  explicit BasicBlockImpl(const BlockShape& shape)
      : ResidualBlock(shape, {{shape.channels, 3, shape.stride}, {shape.channels, 3, 1}}) {}
};
TORCH_MODULE(BasicBlock);

// The stride is that of the 3x3 convolution, unlike in the original ResNet.
struct BottleneckImpl : ResidualBlock {
  static constexpr std::int64_t kExpansion = 4;
  explicit BottleneckImpl(const BlockShape& shape)
      : ResidualBlock(shape, {{shape.channels, 1, 1}, {shape.channels, 3, shape.stride}, {4 * shape.channels, 1, 1}}) {}
};
TORCH_MODULE(Bottleneck);

// Only the first block of a stage changes the resolution and the number of channels.
template <typename Block>
nn::Sequential stage(int num_blocks, BlockShape shape) {
  nn::Sequential blocks;
  for (int block = 0; block < num_blocks; ++block) {
    blocks->push_back(Block(shape));
    shape.inputs = Block::ContainedType::kExpansion * shape.channels;
    shape.stride = 1;
  }
  return blocks;
}

struct ResNetShape {
  std::vector<int> blocks_of_stages = {};
  std::int64_t width, num_classes;
  bool norms_over_ranks = false, has_small_stem = false, is_cifar = false;
};

// For torchvision's networks and CIFAR's.
template <typename Block>
class ResNet : public Model {
 public:
  explicit ResNet(const ResNetShape& shape) : has_small_stem_(shape.has_small_stem), is_cifar_(shape.is_cifar) {
    const auto width = shape.width;
    conv1_ = register_module("conv1", has_small_stem_ ? convolution(3, width, 3, 1) : convolution(3, width, 7, 2));
    bn1_ = register_norm(*this, "bn1", width, shape.norms_over_ranks);
    BlockShape block{.inputs = width,
                     .channels = width,
                     .stride = 1,
                     .norms_over_ranks = shape.norms_over_ranks,
                     .is_cifar = is_cifar_};
    for (const auto num_blocks : shape.blocks_of_stages) {
      const auto name = "layer" + std::to_string(stages_.size() + 1);
      stages_.push_back(register_module(name, stage<Block>(num_blocks, block)));
      block.inputs = Block::ContainedType::kExpansion * block.channels;
      block.channels *= 2;
      block.stride = 2;
    }
    // The order of these statements is that of the Python constructor, which decides the random weights.
    linear_ = register_module(is_cifar_ ? "linear" : "fc", Linear(block.inputs, shape.num_classes));
    if (!is_cifar_) draw_convolutions();
  }

  at::Tensor forward(const at::Tensor& images) override {
    auto values = at::relu(bn1_(call(conv1_, images)));
    if (!has_small_stem_) values = at::max_pool2d(values, 3, 2, 1);
    for (auto& stage : stages_) values = call(stage, values);
    // CIFAR's 32x32 image is 4x4 here, so both are global average pooling.
    const auto pooled = is_cifar_ ? at::avg_pool2d(values, 4) : at::adaptive_avg_pool2d(values, {1, 1});
    return call(linear_, pooled.flatten(1));
  }

 private:
  // kaiming_normal_ with mode fan_out and the gain of a ReLU, as torchvision draws them again.
  void draw_convolutions() {
    const c10::NoGradGuard no_grad;
    for (const auto& module : this->modules(/*include_self=*/false)) {
      const auto* convolution = module->template as<nn::Conv2d>();
      if (convolution == nullptr) continue;
      const auto fan_out = convolution->weight.size(0) * convolution->weight[0][0].numel();
      convolution->weight.normal_(0.0, std::sqrt(2.0) / std::sqrt(static_cast<double>(fan_out)));
    }
  }

  bool has_small_stem_, is_cifar_;
  nn::Conv2d conv1_{nullptr};
  BatchNorm bn1_;
  std::vector<nn::Sequential> stages_;
  Linear linear_{nullptr};
};

ResNetShape torchvision_shape(std::vector<int> blocks_of_stages, const ResNetOptions& options) {
  return {.blocks_of_stages = std::move(blocks_of_stages),
          .width = options.width,
          .num_classes = options.num_classes,
          .norms_over_ranks = options.sync_batchnorm,
          .has_small_stem = options.small_images};
}

}  // namespace

std::shared_ptr<Model> resnet18(const ResNetOptions& options) {
  return std::make_shared<ResNet<BasicBlock>>(torchvision_shape({2, 2, 2, 2}, options));
}

std::shared_ptr<Model> resnet50(const ResNetOptions& options) {
  return std::make_shared<ResNet<Bottleneck>>(torchvision_shape({3, 4, 6, 3}, options));
}

std::shared_ptr<Model> cifar_resnet18(const CifarResNetOptions& options) {
  return std::make_shared<ResNet<BasicBlock>>(ResNetShape{.blocks_of_stages = {2, 2, 2, 2},
                                                          .width = options.width,
                                                          .num_classes = options.num_classes,
                                                          .norms_over_ranks = options.sync_batchnorm,
                                                          .has_small_stem = true,
                                                          .is_cifar = true});
}

}  // namespace accel::models
