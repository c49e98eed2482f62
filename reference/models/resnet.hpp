#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

/// Residual networks.
///
///     auto model = accel::models::resnet50({.num_classes = 1000});
///     accel::load_checkpoint_in_model(*model, "resnet50.pth", {.strict = true});  // torchvision's state dict
///
/// Thread rule: models belong to their rank.
namespace accel::models {

struct ResNetOptions {
  std::int64_t width = 64;  ///< channels of the first stage
  std::int64_t num_classes = 1000;
  bool sync_batchnorm = false;  ///< batch statistics over all ranks; training is then collective
  bool small_images = false;    ///< a 3x3 stem without pooling, for images such as CIFAR's
};

/// ResNet-18 and ResNet-50 as in torchvision: (B, 3, height, width) -> (B, num_classes). A 7x7 stem with stride 2 and a
/// 3x3 pooling, then four stages with `width`, 2, 4 and 8 times as many channels, of two basic blocks each, or of 3, 4,
/// 6 and 3 bottlenecks; each stage but the first halves the resolution.
///
/// Names are those of torchvision's state dicts, and the same seed gives the same initial weights. Source:
/// torchvision/models/resnet.py, with zero_init_residual=False; properties/oracle/resnet.py.
std::shared_ptr<Model> resnet18(const ResNetOptions& options = {});
std::shared_ptr<Model> resnet50(const ResNetOptions& options = {});

struct CifarResNetOptions {
  std::int64_t width = 64;  ///< channels of the first stage
  std::int64_t num_classes = 10;
  bool sync_batchnorm = false;
};

/// ResNet-18 in the usual form for CIFAR: (B, 3, 32, 32) -> (B, num_classes). Unlike resnet18 with small_images, it has
/// the names `shortcut` and `linear` and LibTorch's default initial weights.
///
/// Source: github.com/kuangliu/pytorch-cifar, models/resnet.py; properties/oracle/resnet.py.
std::shared_ptr<Model> cifar_resnet18(const CifarResNetOptions& options = {});

}  // namespace accel::models
