#pragma once

#include <cstdint>
#include <memory>

#include "sim/programs/network.hpp"

namespace accel::programs {

struct ResNetOptions {
  std::int64_t width = 64, num_classes = 10;
  bool sync_batchnorm = false;  ///< batch statistics of all ranks together; training is then collective
};

/// ResNet-18 for images of 32x32: a stem of 3x3 without pooling, then stages of two basic blocks with `width`, 2, 4 and 8 times
/// as many channels, each but the first at half the resolution. (B, 3, 32, 32) float32 -> (B, num_classes).
///
/// Source: He et al., Deep Residual Learning for Image Recognition, in the form usual for CIFAR
/// (github.com/kuangliu/pytorch-cifar, models/resnet.py), whose names the parameters have; properties/oracle/resnet.py.
std::shared_ptr<Network> make_resnet18(const ResNetOptions& options);

}  // namespace accel::programs
