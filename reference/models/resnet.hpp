#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

namespace accel::models {

struct ResNetOptions {
  std::int64_t width = 64;  ///< channels of the first stage
  std::int64_t num_classes = 10;
  bool sync_batchnorm = false;  ///< batch statistics over all ranks; training is then collective
};

/// ResNet-18 for images of 32x32: (B, 3, 32, 32) float32 -> (B, num_classes). A stem of 3x3 without pooling, then
/// stages of two basic blocks with `width`, 2, 4 and 8 times as many channels, each but the first at half the
/// resolution.
///
/// Source: He et al., Deep Residual Learning for Image Recognition, in the form usual for CIFAR
/// (github.com/kuangliu/pytorch-cifar, models/resnet.py), whose parameter names it has; properties/oracle/resnet.py.
std::shared_ptr<Model> resnet18(const ResNetOptions& options);

}  // namespace accel::models
