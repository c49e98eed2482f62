#pragma once

#include <torch/nn/module.h>

#include "reference/modules/linear.hpp"

/// The base class of this library's models.
///
/// Modules draw their weights when they are constructed, and C++ does not specify the evaluation order of function
/// arguments. Construct submodules one statement at a time, in the order of the Python model (properties/oracle).
namespace accel::models {

/// A module that maps one tensor to logits over the last dimension.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& inputs) = 0;
};

}  // namespace accel::models
