#pragma once

#include <memory>

#include "sim/programs/model_config.hpp"
#include "sim/programs/network.hpp"

namespace accel::programs {

/// (B, 1, 28, 28) float32 -> (B, 10). mlp: Flatten, Linear, ReLU, Dropout, Linear; cnn: two convolutions, each with ReLU and
/// MaxPool2d, then Flatten, Dropout, Linear. Parameters are named as those of Python's Sequential.
std::shared_ptr<Network> make_image_network(const ModelConfig& config);

}  // namespace accel::programs
