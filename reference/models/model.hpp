#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "reference/core/linear.hpp"
#include "reference/precision/float8_layers.hpp"

/// The base class of this library's models, and the linear layer that all of them use.
///
/// Modules draw their weights when they are constructed, and C++ does not specify the evaluation order of function
/// arguments. Construct submodules one statement at a time, in the order of the Python model (properties/oracle).
namespace accel::models {

/// A module that maps one tensor to logits over the last dimension.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& inputs) = 0;
};

/// torch.nn.Linear as Python computes it, with at::linear. LibTorch's LinearImpl calls addmm with a transposed weight,
/// which autocast casts at another point: gradients would become ready, and buckets fill, in another order than in
/// Python.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) {
    if (computes_in_float8(*this)) return torch::nn::LinearImpl::forward(input);
    if (auto output = fused_linear(input, weight, bias)) return *std::move(output);
    return at::linear(input, weight, bias);
  }
};
TORCH_MODULE(Linear);

}  // namespace accel::models
