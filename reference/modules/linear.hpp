#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "reference/precision/float8_layers.hpp"

/// The linear layer of this library's models. Thread rule: modules belong to their rank.
namespace accel::models {

/// torch.nn.Linear as Python computes it, with at::linear, also in a program that does not export its symbols.
/// LibTorch's LinearImpl multiplies by a transposed weight, which autocast casts at another point: gradients would
/// become ready, and buckets fill, in another order than in Python.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) {
    if (computes_in_float8(*this)) return torch::nn::LinearImpl::forward(input);
    return at::linear(input, weight, bias);
  }
};
TORCH_MODULE(Linear);

}  // namespace accel::models
