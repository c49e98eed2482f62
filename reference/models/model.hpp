#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "reference/core/linear.hpp"
#include "reference/precision/float8_layers.hpp"

/// The base class of this library's models, and the layer that all of them contain.
///
/// Modules draw their weights when they are constructed, and C++ leaves the evaluation order of function arguments
/// open: construct submodules one statement at a time, in the order of the Python model (properties/oracle).
namespace accel::models {

/// A module with one tensor in and the logits over the last dimension out.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& inputs) = 0;
};

/// torch.nn.Linear as Python computes it, by at::linear. LibTorch's LinearImpl calls addmm with a transposed weight,
/// which autocast casts elsewhere: gradients then arrive, and buckets fill, in another order than in Python.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) {
    if (computes_in_float8(*this)) return torch::nn::LinearImpl::forward(input);
    if (auto output = plain_linear(input, weight, bias)) return *std::move(output);
    return at::linear(input, weight, bias);
  }
};
TORCH_MODULE(Linear);

}  // namespace accel::models
