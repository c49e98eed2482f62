#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

/// The training of `accel test`: a linear layer that learns the line 2x + 3.
///
///     const auto parameters = train_alone(accelerator, points(96), 1);  // what ranks must reach together
///
/// Thread rule: the rank's thread.
namespace accel {
class Accelerator;
}

namespace accel::programs {

inline constexpr std::int64_t kBatch = 8;  // per rank
inline constexpr double kRate = 0.1;

/// Points of the line, in [0, 1). Shape: (count, 1), float32.
at::Tensor points(std::int64_t count);

/// A layer with the same parameters on every rank.
torch::nn::Linear make_line();

/// Trains the layer on one process, with the micro-batches and the clipping of the accelerator. Returns its parameters.
std::vector<at::Tensor> train_alone(const Accelerator& accelerator, const at::Tensor& x, int accumulation);

}  // namespace accel::programs
