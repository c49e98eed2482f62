#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "reference/config/float8.hpp"

namespace accel {

/// input * weight^T + bias, with products of forward and backward in float8.
///
/// Shapes: input (..., I), weight (O, I), bias (O) or undefined -> (..., O). Dtype: the input's; under autocast, that
/// of autocast, and on GPUs the input is cast to it first. Gradients of any dtype that autograd takes for the
/// parameters'. One scale for a whole tensor is computed anywhere; axiswise scales with use_fast_accum need a GPU's
/// kernel, and are multiplied behind the product elsewhere. Source: torchao 0.18, float8/float8_linear.py.
at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         std::shared_ptr<const Float8LinearConfig> config);

}  // namespace accel
