#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

/// Image models.
namespace accel::models {

// Small models for 28x28 images such as MNIST's: (B, 1, 28, 28) float32 -> (B, 10). Parameter names are those of
// Python's Sequential.

struct MlpOptions {
  std::int64_t hidden = 128;
  double dropout = 0.0;
};

/// Flatten, Linear, ReLU, Dropout, Linear.
std::shared_ptr<Model> mlp(const MlpOptions& options);

struct CnnOptions {
  double dropout = 0.0;
};

/// Two convolutions, each with ReLU and MaxPool2d, then Flatten, Dropout, Linear.
std::shared_ptr<Model> cnn(const CnnOptions& options);

struct ResNetOptions {
  std::int64_t width = 64;  ///< channels of the first stage
  std::int64_t num_classes = 10;
  bool sync_batchnorm = false;  ///< batch statistics over all ranks; training is then collective
};

/// ResNet-18 for 32x32 images: (B, 3, 32, 32) float32 -> (B, num_classes). A 3x3 stem without pooling, then four stages
/// of two basic blocks with `width`, 2, 4 and 8 times as many channels; each stage but the first halves the resolution.
///
/// Source: He et al., Deep Residual Learning for Image Recognition, in the usual form for CIFAR
/// (github.com/kuangliu/pytorch-cifar, models/resnet.py), whose parameter names it uses; properties/oracle/resnet.py.
std::shared_ptr<Model> resnet18(const ResNetOptions& options);

}  // namespace accel::models
