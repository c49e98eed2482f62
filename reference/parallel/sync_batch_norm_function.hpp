#pragma once

#include <ATen/core/Tensor.h>

#include "reference/comm/group.hpp"

namespace accel {

struct SyncBatchNormArguments {
  at::Tensor weight = {}, bias = {}, running_mean = {}, running_var = {};  ///< or undefined
  double momentum = 0.1, eps = 1e-5;
};

/// Normalizes `input` (N, C, ...) with the statistics of all ranks' inputs, and updates the running ones.
/// Differentiable in input, weight and bias. Collective; so is its backward pass. Source:
/// torch/nn/modules/_functions.py, SyncBatchNorm.
at::Tensor sync_batch_norm(const at::Tensor& input, const SyncBatchNormArguments& arguments, const Group& group);

}  // namespace accel
