#pragma once

#include <ATen/core/Tensor.h>

#include "reference/comm/group.hpp"

namespace accel {

struct SyncBatchNormArguments {
  at::Tensor weight = {}, bias = {}, running_mean = {}, running_var = {};  ///< undefined if absent
  double momentum = 0.1, eps = 1e-5;
};

/// Normalizes `input` (N, C, ...) with the statistics of all ranks' inputs, and updates the running statistics.
/// Differentiable in input, weight and bias. Forward and backward are collective. Source:
/// torch/nn/modules/_functions.py, SyncBatchNorm.
at::Tensor sync_batch_norm(const at::Tensor& input, const SyncBatchNormArguments& arguments, const Group& group);

// The arithmetic of SyncBatchNorm, without communication. On CUDA it uses LibTorch's fused kernels, as Python does;
// elsewhere, where these kernels do not exist, plain operators.
//
// Channels are dimension 1. Thread rule: plain functions on values.

/// Returns (2 C + 1) numbers: per channel the mean, then the inverse standard deviation (CUDA) or the sum of squared
/// deviations (elsewhere), then the number of values per channel. Zeros for an input without rows.
at::Tensor local_statistics(const at::Tensor& input, double eps);

struct GlobalStatistics {
  at::Tensor mean = {}, invstd = {};  ///< (C)
  at::Tensor counts = {};             ///< values per channel of each rank that has rows
};
/// Combines the statistics of all ranks, (P, 2 C + 1), and updates the running ones. Throws ArgumentError for fewer
/// than 2 values per channel.
GlobalStatistics global_statistics(const at::Tensor& all, const at::Tensor& input,
                                   const SyncBatchNormArguments& arguments);

at::Tensor normalized(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const GlobalStatistics& statistics, double eps);

struct LocalGradients {
  at::Tensor sum_dy = {}, sum_dy_xmu = {}, weight = {}, bias = {};  ///< (C)
};
LocalGradients local_gradients(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                               const GlobalStatistics& statistics);

/// `sum_dy` and `sum_dy_xmu` are summed over all ranks.
at::Tensor input_gradient(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                          const GlobalStatistics& statistics, const at::Tensor& sum_dy, const at::Tensor& sum_dy_xmu);

}  // namespace accel
