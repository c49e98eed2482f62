#pragma once

#include <cstdint>
#include <memory>

#include "reference/models/model.hpp"

/// Small models for images of 28x28, as of MNIST: (B, 1, 28, 28) float32 -> (B, 10). Parameters have the names of
/// Python's Sequential.
namespace accel::models {

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
