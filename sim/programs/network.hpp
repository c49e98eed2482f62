#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <ATen/ops/linear.h>

#include <string>
#include <vector>

#include "reference/core/linear.hpp"
#include "reference/precision/float8_layers.hpp"

/// What networks of the tasks are made of. Modules draw their weights when they are made, and C++ does not say in which order
/// the arguments of one call are: make them statement by statement, in the order of the Python twin (properties/oracle).
namespace accel::programs {

/// A network of any task: inputs of its data in, logits over the last dimension out.
class Network : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& inputs) = 0;
};

/// Python's Linear calls at::linear; LibTorch's own calls addmm with a transposed weight, which autocast casts at another
/// place, so that gradients arrive, and buckets are filled, in another order than in Python.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) {
    if (computes_in_float8(*this)) return torch::nn::LinearImpl::forward(input);
    if (auto output = plain_linear(input, weight, bias)) return *std::move(output);
    return at::linear(input, weight, bias);
  }
};
TORCH_MODULE(Linear);

}  // namespace accel::programs
