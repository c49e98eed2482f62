#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

/// Small image models, for MNIST.
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

}  // namespace accel::models
